// What runs on the emulator: small problems that between them touch every tile and every feature of the sm80
// family. Each new kernel costs a second or two of compilation, each key block of a tile some milliseconds.
#pragma once

#include <algorithm>
#include <string>

namespace onepass::emulator {

struct EmulatedCase {
  const char* device;  // whose tiles the planner chooses
  const char* text;    // seeds are even: tensors start aligned, as on a GPU
};

// The instructions that the emulator knows: of Hopper's, those of sm90_decode.
inline constexpr int kForwardInstructions = 80, kDecodeInstructions = 90;

/// "h200_bf16_b1_...", for info.param a case: a test's name has no '-' and no '.'.
inline constexpr auto case_test_name = [](const auto& info) {
  std::string name = std::string(info.param.device) + "_" + info.param.text;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
};

// Tiles by head_dim and rows stand in dispatch/heuristics_sm80.cpp.
inline constexpr EmulatedCase kCases[] = {
    // head_dim 64: 128 rows, 128 keys
    {"h200", "bf16_b1_hq1_sq130_sk300_d64_causal"},
    {"h200", "f16_b1_hq1_sq129_sk65_d64"},
    {"h200", "f16_b1_hq2_hk1_sq150_sk140_d64_wl20_wr5"},
    {"h200", "bf16_b3_hq2_hk1_sq100_sk90_d64_causal_packed_ragged_gap_seed2"},
    {"h200", "bf16_b3_hq2_hk1_sq100_sk90_d64_causal_packedk_ragged_gap_seed2"},
    // few rows: 64 of them, grouped heads packed
    {"h200", "bf16_b1_hq6_hk2_sq5_sk130_d64_causaltl_wl3"},
    {"h200", "bf16_b1_hq4_hk1_sq7_sk40_d64_causal_sink"},
    {"h200", "f16_b2_hq4_hk1_sq17_sk100_d64_causal_page7_ragged"},
    {"h200", "bf16_b1_hq3_sq33_sk70_d64_causal_softcap5_alibi_bias_sink"},
    {"h200", "f16_b2_hq2_sq20_sk70_d64_scale0_alibib_biasbhf32"},
    {"h200", "bf16_b1_hq2_sq65_sk64_d64_scale-0.1_bias11_nolse"},
    {"h200", "bf16_b2_hq4_hk2_sq3_sk300_d64_causal_split3_sink"},
    {"h200", "f16_b2_hq2_sq1_sk150_d64_packed_ragged_split2"},
    {"h200", "bf16_b2_hq2_hk1_sq9_sk0_d64"},
    {"h200", "f16_b4_hq1_sq20_sk20_d64_causal_packed_ragged_gap_seed4"},
    // many query rows and few in one batch: two launches
    {"h200", "bf16_b5_hq2_hk1_sq140_sk520_d64_causal_packedq_page16_ragged_seed18"},
    // head_dim 128, and others up to it; rows in pieces of 16, 8, 4 and 2 bytes
    {"h200", "bf16_b1_hq1_sq140_sk130_d128_causal"},
    {"a100", "f16_b1_hq8_hk1_sq2_sk200_d128_causal_page16_ragged_split2"},
    {"h200", "f16_b1_hq1_sq70_sk80_d80_dv72_causal_bhsd"},
    {"h200", "bf16_b1_hq1_sq70_sk70_d40_dv96_causal"},  // O reaches past Q into V
    {"h200", "bf16_b1_hq2_sq30_sk70_d63_causal"},
    {"h200", "f16_b1_hq1_sq20_sk66_d68_dv36_reversed"},
    {"h200", "bf16_b1_hq1_sq20_sk33_d70_dv33_sink"},
    // head_dim 192 and 256: tiles by the device, fewer keys with score terms
    {"h200", "bf16_b1_hq1_sq70_sk130_d256_causal"},
    {"h200", "bf16_b1_hq1_sq70_sk130_d256_split2"},
    {"h200", "f16_b1_hq1_sq40_sk100_d192_dv128_causal_sink"},
    {"h200", "bf16_b2_hq2_hk1_sq6_sk150_d256_wl40_page5_ragged_split2"},
    {"h200", "f16_b1_hq2_sq20_sk70_d256_softcap20_bias"},
    {"a100", "f16_b1_hq1_sq130_sk70_d256_causal"},
    {"l40s", "bf16_b1_hq1_sq65_sk40_d256_causal"},
    // latent attention: two warps share rows; and what lies between
    {"h200", "bf16_b1_hq16_hk1_sq2_sk70_d576_dv512_causal_page9"},
    {"l40s", "f16_b1_hq16_hk1_sq1_sk40_d576_dv512"},
    {"h200", "bf16_b1_hq2_hk1_sq20_sk300_d576_dv512_causal_split2"},
    {"h200", "f16_b1_hq1_sq33_sk70_d512_sink"},
    {"h200", "bf16_b1_hq1_sq20_sk40_d320_dv256_causal"},
};

// The sm80 backward kernels: tiles stand in dispatch/heuristics_sm80_backward.cpp. Rows of no sequence are
// NaN in dO, too.
inline constexpr EmulatedCase kSm80BackwardCases[] = {
    // head_dim 64: 128 own rows; keys that no query sees, queries that see none
    {"h200", "bf16_b1_hq2_hk1_sq150_sk140_d64_causal_bwd_dlse"},
    {"h200", "bf16_b1_hq1_sq140_sk60_d64_causal_bwd_doutone"},
    {"h200", "bf16_b1_hq2_sq130_sk150_d64_wl20_wr5_bwd_doutother"},
    {"h200", "bf16_b3_hq2_hk1_sq100_sk90_d64_causal_packed_ragged_gap_bwd_dlse_seed2"},
    {"h200", "bf16_b3_hq2_sq60_sk50_d64_causaltl_wl9_ragged_bwd_sink_seed4"},
    {"h200", "bf16_b2_hq2_hk1_sq9_sk0_d64_bwd"},
    {"h200", "bf16_b2_hq2_hk1_sq0_sk9_d64_bwd"},
    // score terms, and the bias's own kernel
    {"h200", "bf16_b2_hq4_hk2_sq40_sk70_d64_causal_softcap5_alibi_biasbh_sink_bwd_dlse"},
    {"h200", "bf16_b1_hq2_hk2_sq90_sk70_d64_causal_softcap5_bwd"},  // rows without keys
    {"h200", "bf16_b3_hq2_sq40_sk50_d64_biasb1_biasinf_ragged_bwd_seed2"},
    {"h200", "bf16_b3_hq4_hk2_sq70_sk30_d64_scale-0.1_bias1hf32_packed_ragged_gap_causal_bwd_seed8"},
    // head_dim 128; rows in pieces of 2 bytes
    {"h200", "bf16_b1_hq1_sq130_sk140_d128_causal_bwd"},
    {"a100", "f16_b1_hq4_hk1_sq70_sk80_d128_softcap8_wl30_bwd"},
    {"h200", "f16_b1_hq2_sq30_sk70_d63_causal_bwd"},
    // wider: dK and dV apart, in slices past 256; one buffer for steps
    {"h200", "bf16_b1_hq2_hk1_sq40_sk70_d256_causal_bwd"},
    {"l40s", "f16_b1_hq1_sq20_sk20_d320_dv300_bwd"},
};

// sm90_decode: tiles stand in dispatch/heuristics_decode.cpp. Padded keys and values are NaN, and so are
// pages that nobody has; columns of a table past a sequence's pages lead out of the pool.
inline constexpr EmulatedCase kDecodeCases[] = {
    // head_dim 128: 128 keys a block, 8 rows
    {"h200", "bf16_b1_hq8_hk2_sq1_sk1000_d128"},
    {"h200", "bf16_b1_hq8_hk2_sq1_sk1000_d128_split1"},
    {"h200", "bf16_b4_hq4_hk1_sq1_sk63_d128_ragged_split2"},
    {"h200", "f16_b3_hq7_hk1_sq1_sk65_d128_causal_split1_sink"},
    {"h200", "f16_b3_hq7_hk1_sq1_sk300_d128_causal_packed_ragged_gap_seed2_split3_sink"},
    {"h200", "bf16_b3_hq8_hk2_sq1_sk200_d128_page16_ragged_split2"},
    {"h200", "bf16_b3_hq8_hk2_sq1_sk200_d128_page16_ragged_split1"},
    {"h200", "bf16_b2_hq4_hk1_sq1_sk500_d128_page64_ragged_split5"},
    {"h200", "bf16_b2_hq4_hk1_sq1_sk300_d128_page24_ragged_split2"},
    {"h200", "bf16_b2_hq4_hk1_sq2_sk300_d128_page128_causal_wl100_ragged_split2"},
    {"h200", "bf16_b1_hq2_hk2_sq1_sk17_d128_wl5_split1"},
    {"h200", "bf16_b1_hq2_hk2_sq3_sk1_d128_causaltl_split1"},
    {"h200", "bf16_b2_hq2_hk2_sq2_sk0_d128_page16_split1_sink"},
    // eight splits, a cluster
    {"h200", "bf16_b1_hq8_hk2_sq1_sk1000_d128_split8"},
    {"h200", "bf16_b3_hq8_hk2_sq1_sk300_d128_page16_ragged_split8_sink"},
    {"h200", "f16_b2_hq4_hk1_sq4_sk700_d64_causal_ragged_split8"},
    {"h200", "bf16_b1_hq9_hk1_sq1_sk520_d256_split8"},
    // 16 rows, and more than one tile of them
    {"h200", "bf16_b2_hq10_hk1_sq2_sk520_d128_causal_split2"},
    {"h200", "bf16_b1_hq12_hk1_sq3_sk1200_d128_page16_causal_wl60_wr1_ragged_split3_sink"},
    // head_dim 64: 24 rows
    {"h200", "bf16_b2_hq4_hk1_sq1_sk400_d64_ragged_split2"},
    {"h200", "bf16_b3_hq4_hk1_sq1_sk400_d64_packedk_ragged_gap_seed2_split2"},
    {"h200", "f16_b1_hq71_hk1_sq1_sk520_d64_split2"},
    {"h200", "bf16_b2_hq8_hk1_sq4_sk1200_d64_page16_causal_ragged_split2"},
    {"h200", "bf16_b2_hq4_hk1_sq4_sk300_d64_page8_causal_ragged_softcap5_alibi_split2"},
    {"h200", "bf16_b1_hq4_hk1_sq1_sk200_d64_scale-0.1_split1"},
    // head_dim 256 and others
    {"h200", "bf16_b2_hq4_hk1_sq1_sk200_d256_ragged_split2"},
    {"h200", "f16_b2_hq8_hk2_sq1_sk150_d256_page16_ragged_softcap20_split2"},
    {"h200", "bf16_b1_hq4_hk1_sq1_sk200_d192_dv128_causal_split2"},
    {"h200", "bf16_b2_hq4_hk2_sq1_sk100_d80_dv48_page16_ragged_split1"},
    {"h200", "bf16_b2_hq5_hk1_sq1_sk100_d96_bhsd_nolse_split1"},
    // K and V of 8 bits; head_dim 64, 80 and 192 leave part of a row of 128 bytes empty
    {"h200", "bf16_b2_hq8_hk2_sq1_sk300_d128_kvf8e4m3_descalebh_split1"},
    {"h200", "f16_b3_hq8_hk2_sq1_sk500_d128_kvf8e4m3_page16_ragged_split2_sink"},
    {"h200", "bf16_b2_hq8_hk2_sq1_sk300_d128_kvf8e5m2_descaleh_page24_ragged_split3"},
    {"h200", "bf16_b1_hq8_hk2_sq1_sk1000_d128_kvi8_descaleh_split8"},
    {"h200", "f16_b2_hq8_hk1_sq2_sk600_d128_kvi8_descale1_causal_wl300_ragged_split2"},
    {"h200", "bf16_b2_hq4_hk1_sq1_sk400_d64_kvf8e4m3_descale1_ragged_split2"},
    {"h200", "bf16_b2_hq4_hk2_sq1_sk100_d80_dv48_kvf8e4m3_page16_ragged_split1"},
    {"h200", "f16_b1_hq4_hk1_sq1_sk200_d192_dv128_kvf8e5m2_causal_split2"},
    {"h200", "bf16_b2_hq8_hk2_sq1_sk150_d256_kvi8_descalebh_page16_ragged_softcap20_split2"},
    {"h200", "bf16_b1_hq4_hk2_sq30_sk150_d128_kvf8e4m3_descaleh_causal_packed_ragged_scale-0.1"},
    // pages that no box fits, key by key; rows of other than a power of two of pieces; in a cluster, in parts
    {"h200", "bf16_b3_hq8_hk2_sq1_sk200_d128_page1_ragged_split2"},
    {"h200", "bf16_b3_hq14_hk2_sq1_sk300_d128_page3_ragged_split1_sink"},
    {"h200", "f16_b2_hq4_hk1_sq2_sk300_d128_page5_causal_wl100_ragged_split2"},
    {"h200", "bf16_b2_hq4_hk1_sq1_sk500_d128_page12_ragged_split5"},
    {"h200", "bf16_b3_hq8_hk2_sq1_sk600_d128_page20_ragged_split8_sink"},
    {"h200", "bf16_b2_hq4_hk1_sq1_sk500_d128_page100_ragged_softcap20_split3"},
    {"h200", "f16_b3_hq4_hk1_sq2_sk1200_d128_causal_packedq_page2_ragged_gap_seed2_split3"},
    {"h200", "bf16_b2_hq7_hk1_sq3_sk300_d64_page1_causal_ragged_alibi_split2"},
    {"h200", "bf16_b2_hq8_hk2_sq1_sk150_d256_page3_ragged_split2"},
    {"h200", "bf16_b2_hq4_hk2_sq1_sk100_d80_dv48_page5_ragged_split1"},
    {"h200", "f16_b2_hq4_hk1_sq1_sk200_d192_dv128_page12_wl60_wr0_ragged_split2"},
    {"h200", "bf16_b2_hq2_hk2_sq2_sk0_d128_page1_split1_sink"},
    {"h200", "f16_b3_hq8_hk2_sq1_sk500_d128_kvf8e4m3_descaleh_page1_ragged_split2"},
    {"h200", "bf16_b2_hq4_hk2_sq1_sk100_d80_dv48_kvi8_descale1_page5_ragged_split1"},
    // factors of pages: boxes of a page and of part of one, many boxes of a tile, key by key, in a cluster
    {"h200", "bf16_b3_hq8_hk2_sq1_sk500_d128_kvf8e4m3_descaleph_page16_ragged_split2_sink"},
    {"h200", "f16_b2_hq8_hk1_sq2_sk600_d128_kvi8_descalep_causal_page24_wl300_ragged_split2"},
    {"h200", "bf16_b2_hq8_hk2_sq1_sk700_d64_kvf8e5m2_descaleph_page256_ragged_split1"},
    {"h200", "bf16_b2_hq16_hk2_sq2_sk600_d64_kvi8_descaleph_page8_causal_ragged_softcap20_split2"},
    {"h200", "bf16_b2_hq8_hk2_sq1_sk150_d256_kvf8e4m3_descalep_page16_ragged_split8"},
    {"h200", "bf16_b3_hq8_hk2_sq1_sk500_d128_kvf8e4m3_descaleph_page1_ragged_split2"},
    {"h200", "bf16_b2_hq4_hk2_sq1_sk100_d80_dv48_kvi8_descalep_page5_ragged_split1_sink"},
};

// The same with blocks that stay, on a small_device() with so many processors: several items for each block,
// items of several blocks, some of them without rows or keys. Where lengths may differ, shares of the keys.
inline constexpr EmulatedCase kStayingDecodeCases[] = {
    {"3", "bf16_b3_hq8_hk4_sq1_sk200_d128"},
    {"3", "bf16_b7_hq8_hk2_sq1_sk300_d128_ragged"},
    {"4", "bf16_b40_hq2_hk1_sq1_sk300_d128_ragged"},
    {"4", "f16_b7_hq8_hk2_sq1_sk900_d128_page16_ragged_sink"},
    {"5", "bf16_b3_hq4_hk1_sq1_sk3000_d128_ragged"},
    {"4", "bf16_b5_hq8_hk2_sq1_sk600_d128_page64_ragged"},
    {"4", "bf16_b6_hq14_hk2_sq1_sk300_d128_packed_ragged_gap_causal_seed2_sink"},
    {"5", "bf16_b3_hq8_hk1_sq4_sk1200_d64_page16_causal_wl150_ragged"},
    {"3", "bf16_b3_hq48_hk1_sq1_sk1500_d64_page8_ragged"},
    {"4", "bf16_b5_hq4_hk2_sq1_sk200_d256_page16_ragged_softcap20"},
    {"4", "bf16_b7_hq8_hk2_sq1_sk600_d128_kvf8e4m3_descaleh_page16_ragged_sink"},
    {"5", "f16_b4_hq8_hk4_sq1_sk900_d64_kvi8_descalebh_ragged"},
    {"3", "bf16_b3_hq8_hk4_sq1_sk400_d256_kvf8e5m2_ragged"},
    {"4", "bf16_b7_hq8_hk2_sq1_sk900_d128_page1_ragged_sink"},
    {"5", "f16_b3_hq7_hk1_sq4_sk1200_d64_page20_causal_wl150_ragged"},
    {"4", "bf16_b5_hq4_hk2_sq1_sk200_d256_page5_ragged"},
    {"4", "bf16_b7_hq8_hk2_sq1_sk600_d128_kvf8e4m3_descaleh_page3_ragged"},
    {"4", "bf16_b7_hq8_hk2_sq1_sk600_d128_kvi8_descaleph_page16_ragged_sink"},
    {"4", "bf16_b7_hq8_hk2_sq1_sk600_d128_kvf8e4m3_descaleph_page3_ragged"},
    // equal lengths: items by number, also of parts of the keys
    {"3", "bf16_b3_hq8_hk4_sq1_sk400_d256_kvf8e5m2"},
    {"5", "bf16_b5_hq8_hk2_sq1_sk600_d128_split3_sink"},
    {"4", "f16_b3_hq8_hk1_sq4_sk1200_d64_causal_wl150_split2"},
    {"3", "bf16_b3_hq48_hk1_sq1_sk700_d64_softcap20"},
    {"4", "f16_b4_hq8_hk4_sq1_sk900_d64_kvi8_descalebh_split2"},
};

// batch_invariant: for sm90_decode, and for sm80_forward with the kernel that merges. Sequences of up to
// three parts of 2048 keys, windows that skip parts; packed, sequences of few rows beside one of many.
inline constexpr EmulatedCase kInvariantCases[] = {
    {"decode", "bf16_b3_hq8_hk2_sq1_sk4300_d128_ragged_sink_invariant"},
    {"decode", "f16_b3_hq4_hk1_sq4_sk4500_d64_page16_causal_wl2100_ragged_invariant_seed2"},
    {"decode", "bf16_b2_hq4_hk1_sq1_sk2200_d256_packed_ragged_gap_causal_softcap20_invariant"},
    {"decode", "bf16_b3_hq8_hk2_sq1_sk2500_d128_kvf8e4m3_descaleh_page64_ragged_invariant"},
    {"decode", "bf16_b3_hq8_hk2_sq1_sk2500_d128_kvf8e4m3_descaleph_page64_ragged_invariant"},
    {"decode", "bf16_b2_hq8_hk2_sq1_sk300_d128_invariant"},
    {"decode", "bf16_b3_hq4_hk1_sq1_sk2300_d128_page5_ragged_invariant"},
    {"h200", "bf16_b3_hq4_hk2_sq1_sk4300_d64_ragged_sink_invariant"},
    {"a100", "f16_b3_hq4_hk1_sq3_sk2200_d128_page16_causal_wl900_ragged_invariant_seed2"},
    {"h200", "bf16_b4_hq8_hk1_sq70_sk2100_d64_packed_ragged_causal_invariant_seed4"},
    {"l40s", "bf16_b2_hq2_sq1_sk300_d256_ragged_alibib_invariant"},
};

// A packed batch as several launches, of sm90_decode where few rows are few: pages that sm90_forward does not
// take, so that sm80_forward has the others. On a small_device() with so many processors.
inline constexpr EmulatedCase kMixedCases[] = {
    {"4", "bf16_b8_hq4_hk1_sq140_sk600_d64_causal_packedq_page5_ragged_gap_seed96"},
};

// sm90_backward, on small_device(): keys in tiles of 128 (64 past head_dim 128), queries in steps of 64 (128
// to head_dim 64). Rows of q that see no key are NaN, and keys that no query sees.
inline constexpr EmulatedCase kBackwardCases[] = {
    {"small", "bf16_b1_hq1_sq128_sk128_d128_bwd"},
    {"small", "bf16_b2_hq2_sq70_sk300_d128_bwd"},
    {"small", "bf16_b1_hq4_hk2_sq200_sk260_d128_causal_bwd_dlse_sink"},
    {"small", "f16_b1_hq3_hk1_sq300_sk150_d128_causaltl_bwd"},
    {"small", "f16_b1_hq2_sq300_sk170_d128_causal_bwd"},
    {"small", "bf16_b1_hq2_sq330_sk330_d128_wl70_wr20_bwd"},
    {"small", "bf16_b2_hq3_sq140_sk140_d64_bwd"},
    {"small", "f16_b1_hq4_hk2_sq400_sk400_d64_causal_bwd_dlse"},
    {"small", "bf16_b1_hq2_hk1_sq130_sk400_d64_causaltl_wl40_bwd"},
    // sequences with lengths of their own
    {"small", "bf16_b3_hq2_hk1_sq100_sk190_d64_causal_packed_ragged_gap_seed2_bwd"},
    {"small", "f16_b3_hq2_sq150_sk200_d128_packed_ragged_gap_seed4_bwd"},
    {"small", "bf16_b2_hq2_sq90_sk160_d128_causaltl_wl60_ragged_seed6_bwd"},
    // other head dims: rests of a step and of a block of columns
    {"small", "bf16_b1_hq1_sq130_sk140_d96_causal_bwd"},
    {"small", "f16_b1_hq1_sq70_sk80_d80_dv72_causal_bhsd_bwd"},
    {"small", "bf16_b1_hq1_sq140_sk130_d40_dv64_sink_bwd"},
    // wide heads: keys in tiles of 64, which both warpgroups have
    {"small", "bf16_b1_hq2_sq130_sk150_d256_bwd"},
    {"small", "f16_b2_hq2_hk1_sq140_sk170_d256_causal_bwd_dlse"},
    {"small", "bf16_b1_hq2_sq150_sk140_d192_causaltl_wl50_bwd"},
    {"small", "bf16_b1_hq4_hk2_sq90_sk130_d192_dv128_causal_bwd"},
    {"small", "f16_b3_hq2_hk1_sq100_sk140_d192_dv128_causal_packed_ragged_gap_seed2_bwd"},
    {"small", "bf16_b2_hq2_sq70_sk100_d256_packed_ragged_gap_sink_seed4_bwd"},
    {"small", "bf16_b1_hq1_sq70_sk80_d136_dv72_wl30_wr9_bhsd_bwd"},
    {"small", "bf16_b1_hq1_sq70_sk80_d80_dv200_causal_bwd_dlse"},
};

}  // namespace onepass::emulator
