// Asynchronous products of a warpgroup: the text that the source writer makes (store/wgmma_text.h), read and
// carried out. A warp does its 16 of the 64 rows when it waits for their group; until then the sums are NaN.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace onepass::emulator {

/// One asm statement: its text, accumulators, and inputs in their order; of those that are a thread's
/// registers of A, which must stay as they are, also where they lie (null otherwise).
void issue_wgmma(const char* text, float* d, const std::uint32_t* registers,
                 std::initializer_list<std::uint32_t> inputs);
void commit_wgmma();
void wait_wgmma(int most_pending);

}  // namespace onepass::emulator
