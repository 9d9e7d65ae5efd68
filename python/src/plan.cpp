#include "onepass/plan.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.h"

namespace nb = nanobind;

namespace onepass::python {

void bind_plan(nb::module_& module) {
  nb::class_<Decline>(module, "Decline",
                      "An implementation that was asked before the chosen one, and said no.")
      .def_ro("implementation", &Decline::implementation)
      .def_ro("reason", &Decline::reason)
      .def("__repr__", [](const Decline& d) { return fmt::format("{}: {}", d.implementation, d.reason); });
  nb::class_<PlanStep>(module, "PlanStep", "One kernel, or one parallel loop on a CPU.")
      .def_ro("kernel", &PlanStep::kernel, "Name, as logs and profilers show it.")
      .def_ro("num_work_items", &PlanStep::num_work_items, "Thread blocks, or units handed to CPU threads.")
      .def_ro("num_threads", &PlanStep::num_threads, "Threads of a block, or CPU threads.")
      .def("__repr__", [](const PlanStep& s) {
        return fmt::format("{}: {} x {} threads", s.kernel, s.num_work_items, s.num_threads);
      });
  nb::class_<WorkspacePiece>(module, "WorkspacePiece", "A named part of the workspace.")
      .def_ro("name", &WorkspacePiece::name)
      .def_ro("offset_bytes", &WorkspacePiece::offset_bytes)
      .def_ro("bytes", &WorkspacePiece::bytes)
      .def("__repr__", [](const WorkspacePiece& p) {
        return fmt::format("{}: {} bytes at {}", p.name, p.bytes, p.offset_bytes);
      });
  nb::class_<Accounting>(module, "Accounting", "FLOPs, bytes and bounds of the whole call.")
      .def_ro("flops", &Accounting::flops, "Of unmasked pairs.")
      .def_ro("bytes_materialised", &Accounting::bytes_materialised, "With S and P in memory.")
      .def_ro("bytes_one_pass", &Accounting::bytes_one_pass, "K and V once per query tile.")
      .def_ro("bytes_lower_bound", &Accounting::bytes_lower_bound, "Each tensor once.")
      .def_ro("seconds_lower_bound", &Accounting::seconds_lower_bound)
      .def_ro("seconds_compute", &Accounting::seconds_compute)
      .def_ro("seconds_memory", &Accounting::seconds_memory);
  nb::class_<Plan>(module, "Plan",
                   "What a call does and why. A value: it can be kept and run any number of times.")
      .def_ro("implementation", &Plan::implementation, "Name of the implementation that accepted.")
      .def_ro("declines", &Plan::declines, "Those asked before it, with their reasons.")
      .def_ro("steps", &Plan::steps)
      .def_ro("parts", &Plan::parts,
              "After the steps: of a mixed batch, sequences of many query rows and of few; of a long "
              "backward call, ranges of heads.")
      .def_ro("tile_m", &Plan::tile_m, "Query rows of a tile.")
      .def_ro("tile_n", &Plan::tile_n, "Keys of a tile.")
      .def_ro("num_splits", &Plan::num_splits, "Parts that the keys are split into.")
      .def_ro("num_threads", &Plan::num_threads)
      .def_ro("workspace", &Plan::workspace)
      .def_ro("accounting", &Plan::accounting)
      .def_prop_ro("device", [](const Plan& plan) { return plan.device.name; })
      .def_prop_ro("workspace_bytes", &Plan::workspace_bytes, "Bytes that a run needs.")
      .def("explain", &Plan::explain, "The plan as text for people, as 'onepass plan' prints it.")
      .def("__str__", &Plan::explain)
      .def("__repr__", [](const Plan& plan) {
        return fmt::format("<onepass.Plan: {} on {}, {} steps, workspace {} bytes>", plan.implementation,
                           plan.device.name, plan.steps.size(), plan.workspace_bytes());
      });
}

}  // namespace onepass::python
