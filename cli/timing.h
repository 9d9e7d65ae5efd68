// Repeated timing of several things in turns, and the numbers that describe it.
#pragma once

#include <functional>
#include <vector>

namespace onepass::cli {

/// Seconds per run.
struct TimingSummary {
  int num_runs = 0;
  double min = 0, lower_quartile = 0, median = 0, upper_quartile = 0, max = 0;

  /// Half the distance of the quartiles, as a share of the median.
  double spread() const { return median > 0 ? (upper_quartile - lower_quartile) / 2 / median : 0; }
};

/// `seconds` is not empty.
TimingSummary summarise_timing(std::vector<double> seconds);

struct TimingRule {
  int repeat = 0;          // runs of each; 0: by time
  double min_seconds = 0;  // of each, and at least three runs unless one takes ten times this long
};

/// Runs every contestant once a round, each round starting with the next one, so that a drift of the machine
/// touches all alike. A contestant returns the seconds it took. `after_round` hears the runs done so far.
std::vector<TimingSummary> time_in_turns(const std::vector<std::function<double()>>& contestants,
                                         const TimingRule& rule, const std::function<void(int)>& after_round);

}  // namespace onepass::cli
