#include "cli/timing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace onepass::cli {
namespace {

constexpr std::size_t kMinRuns = 3;
constexpr double kLongRun = 10;  // in units of min_seconds: then fewer runs will do

bool enough(const std::vector<double>& seconds, const TimingRule& rule) {
  if (rule.repeat > 0) return seconds.size() >= static_cast<std::size_t>(rule.repeat);
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  if (seconds.empty() || total < rule.min_seconds) return false;
  return seconds.size() >= kMinRuns || total >= kLongRun * std::max(rule.min_seconds, 0.1);
}

double quantile(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(position));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

TimingSummary summarise_timing(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {static_cast<int>(seconds.size()), seconds.front(),         quantile(seconds, 0.25),
          quantile(seconds, 0.5),           quantile(seconds, 0.75), seconds.back()};
}

std::vector<TimingSummary> time_in_turns(const std::vector<std::function<double()>>& contestants,
                                         const TimingRule& rule,
                                         const std::function<void(int)>& after_round) {
  const std::size_t n = contestants.size();
  std::vector<std::vector<double>> seconds(n);
  int num_runs = 0;
  for (std::size_t round = 0;; ++round) {
    bool all_enough = true;
    for (std::size_t turn = 0; turn < n; ++turn) {
      const std::size_t i = (round + turn) % n;
      if (enough(seconds[i], rule)) continue;
      all_enough = false;
      seconds[i].push_back(contestants[i]());
      ++num_runs;
    }
    if (all_enough) break;
    after_round(num_runs);
  }
  std::vector<TimingSummary> summaries;
  summaries.reserve(n);
  for (auto& s : seconds) summaries.push_back(summarise_timing(std::move(s)));
  return summaries;
}

}  // namespace onepass::cli
