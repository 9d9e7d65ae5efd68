// What tells one launch's leftovers in a workspace from another's.
#pragma once

namespace onepass::cuda {

/// Never 0, and not the same again for 2^32 launches. Spread over 32 bits: a workspace that held small
/// integers before must not look as if this launch had counted already.
unsigned next_launch_id();

}  // namespace onepass::cuda
