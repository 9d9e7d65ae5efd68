// gpu_check FILE: runs every case text of a file on GPU 0 and judges it against float64. For machines with
// a GPU; tests/cuda/random_cases.py writes such files.
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "onepass/error.h"
#include "problem/case_text.h"
#include "verify/check.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gpu_check FILE\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  if (!file) {
    std::fprintf(stderr, "gpu_check: %s cannot be read\n", argv[1]);
    return 2;
  }
  int passed = 0, failed = 0, declined = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    try {
      const onepass::verify::CheckReport report =
          onepass::verify::check_case(onepass::parse_case(line), {onepass::Backend::Cuda, 0, ""});
      ++(report.passed ? passed : failed);
      if (!report.passed) std::printf("FAILED %s: %s\n", line.c_str(), report.failure.c_str());
    } catch (const onepass::NotSupported&) {
      ++declined;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s: %s\n", line.c_str(), error.what());
    }
    if ((passed + failed + declined) % 100 == 0) {
      std::printf("%d passed, %d failed, %d declined so far\n", passed, failed, declined);
      std::fflush(stdout);
    }
  }
  std::printf("%d passed, %d failed, %d declined\n", passed, failed, declined);
  return failed == 0 && passed > 0 ? 0 : 1;
}
