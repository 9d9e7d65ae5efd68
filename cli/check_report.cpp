#include "cli/check_report.h"

#include <fmt/format.h>

namespace onepass::cli {
namespace {

Json worst_to_json(const verify::Worst& worst) {
  return {{"place", verify::to_string(worst.place)},
          {"got", number_to_json(worst.got)},
          {"want", number_to_json(worst.want)},
          {"error", number_to_json(worst.error)},
          {"bound", number_to_json(worst.bound)}};
}

}  // namespace

std::string summary(const verify::CheckReport& r) {
  if (!r.passed) return r.failure;
  if (!r.gradients.empty()) {
    std::string text;
    for (const verify::GradientReport& g : r.gradients) {
      text += fmt::format("{}{} e {:.2e} <= {:.2e}", text.empty() ? "" : ", ", g.name, g.error, g.bound);
    }
    return text;
  }
  std::string text = fmt::format("e {:.2e} <= {:.2e} (e0 {:.2e}), Frobenius {:.1e} <= {:.0e}", r.out.error,
                                 r.out.bound, r.plain_error, r.frobenius, r.frobenius_bound);
  if (r.num_lse > 0) text += fmt::format(", lse {:.1e} <= {:.1e}", r.lse.error, r.lse.bound);
  return text;
}

Json to_json(const verify::CheckReport& r) {
  Json json = {{"passed", r.passed}};
  if (!r.passed) json["failure"] = r.failure;
  for (const verify::GradientReport& g : r.gradients) {
    json["gradients"].push_back({{"name", g.name},
                                 {"elements", g.num_elements},
                                 {"worst",
                                  {{"index", g.worst_index},
                                   {"got", number_to_json(g.got)},
                                   {"want", number_to_json(g.want)},
                                   {"error", number_to_json(g.error)},
                                   {"bound", number_to_json(g.bound)}}},
                                 {"e0", number_to_json(g.plain_error)},
                                 {"frobenius", number_to_json(g.frobenius)},
                                 {"frobenius_bound", number_to_json(g.frobenius_bound)}});
  }
  if (r.num_out > 0)
    json["out"] = {{"elements", r.num_out},
                   {"worst", worst_to_json(r.out)},
                   {"e", number_to_json(r.out.error)},
                   {"e0", number_to_json(r.plain_error)},
                   {"bound", number_to_json(r.out.bound)},
                   {"frobenius", number_to_json(r.frobenius)},
                   {"frobenius_bound", r.frobenius_bound}};
  if (r.num_lse > 0) json["lse"] = {{"elements", r.num_lse}, {"worst", worst_to_json(r.lse)}};
  if (!r.repeat.empty()) json["repeat"] = r.repeat;
  return json;
}

}  // namespace onepass::cli
