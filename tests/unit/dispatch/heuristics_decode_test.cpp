#include "dispatch/heuristics_decode.h"

#include <gmock/gmock.h>

#include "tests/unit/dispatch/invented.h"

namespace onepass {
namespace {

using testing::bf16_problem;
using ::testing::HasSubstr;
using ::testing::Optional;

DeviceInfo h200() { return find_device("h200").value(); }

/// Pages of a pool whose K and V are row-major.
AttentionProblem paged_problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_k,
                               std::int64_t seqlen_k, std::int64_t head_dim, std::int64_t page_size) {
  AttentionProblem p = bf16_problem(batch, heads_q, heads_k, 1, seqlen_k, head_dim);
  p.k_layout = SequenceLayout::Paged;
  p.page_size = page_size;
  p.max_pages_per_sequence = (seqlen_k + page_size - 1) / page_size;
  p.num_pages = batch * p.max_pages_per_sequence;
  p.total_k = p.num_pages * page_size;
  p.k.batch = p.v.batch = page_size * heads_k * head_dim;
  p.has_seqused_k = true;
  return p;
}

/// Sequences whose lengths the device knows.
AttentionProblem ragged(AttentionProblem problem) {
  problem.has_seqused_k = true;
  return problem;
}

std::string name_of(const AttentionProblem& problem) {
  EXPECT_EQ(decline_sm90_decode(problem, h200()), std::nullopt);
  return kernel_name(choose_sm90_decode(problem, h200(), 0).decode);
}
int splits_of(const AttentionProblem& problem) {
  EXPECT_EQ(decline_sm90_decode(problem, h200()), std::nullopt);
  return choose_sm90_decode(problem, h200(), 0).num_splits;
}

TEST(heuristics_decode, one_query_takes_a_tile_of_eight_rows_and_a_ring_of_96_kib) {
  EXPECT_EQ(name_of(bf16_problem(16, 32, 8, 1, 2048, 64)),
            "sm90_decode_bf16_d64_v64_m8n128w5c1s6b2_l16s16_pack_sm90");
  EXPECT_EQ(name_of(bf16_problem(16, 32, 8, 1, 1024, 128)),
            "sm90_decode_bf16_d128_v128_m8n128w5c1s3b2_l16s16_pack_sm90");
  EXPECT_EQ(name_of(bf16_problem(16, 32, 8, 1, 1024, 256)),
            "sm90_decode_bf16_d256_v256_m8n64w5c1s3b2_l16s16_pack_sm90");
  EXPECT_EQ(name_of(bf16_problem(4, 32, 8, 1, 4096, 128)),
            "sm90_decode_bf16_d128_v128_m8n128w5c1s3b2_l16s16_pack_split_sm90");
  AttentionProblem softcap = paged_problem(4, 32, 8, 4096, 128, 16);
  softcap.softcap = 50;
  EXPECT_EQ(name_of(softcap), "sm90_decode_bf16_d128_v128_m8n128w5c1s3b2_l16s16_paged_terms_pack_split_sm90");
}

TEST(heuristics_decode, many_keys_go_to_blocks_that_stay_with_8_mb_in_flight_in_all_and_12_of_pages) {
  EXPECT_EQ(name_of(bf16_problem(32, 32, 8, 1, 4096, 128)),
            "sm90_decode_bf16_d128_v128_m8n128w5c1s6b1_l16s16_pack_stays_sm90");
  EXPECT_EQ(name_of(ragged(bf16_problem(8, 32, 8, 1, 131072, 128))),
            "sm90_decode_bf16_d128_v128_m8n128w5c1s6b1_l16s16_pack_ragged_stays_sm90");
  EXPECT_EQ(name_of(bf16_problem(128, 32, 8, 1, 4096, 256)),
            "sm90_decode_bf16_d256_v256_m8n64w5c1s6b1_l16s16_pack_stays_sm90");
  const Sm90DecodeConfig config =
      choose_sm90_decode(ragged(bf16_problem(128, 32, 8, 1, 8192, 128)), h200(), 0);
  EXPECT_EQ(config.grid, 128) << "whole sequences of 8 heads on 132 processors";
  EXPECT_EQ(
      config.order,
      (Sm90DecodeOrder{.items = 128 * 8, .team = 8, .rounds = 1, .num_shares = 16, .slots_in_flight = 2}));
  EXPECT_EQ(choose_sm90_decode(paged_problem(128, 32, 8, 8192, 128, 64), h200(), 0).order.slots_in_flight, 3);
  EXPECT_EQ(choose_sm90_decode(bf16_problem(128, 32, 8, 1, 8192, 256), h200(), 0).order.slots_in_flight, 2);
  const auto stays = [](const AttentionProblem& p) { return choose_sm90_decode(p, h200(), 0).decode.stays; };
  EXPECT_FALSE(stays(bf16_problem(8, 32, 8, 1, 8192, 128))) << "too little to read";
  EXPECT_TRUE(stays(bf16_problem(1, 32, 8, 1, 131072, 128))) << "one sequence is enough";
  DeviceInfo unknown = h200();
  unknown.memory_bytes_per_second = 0;
  EXPECT_FALSE(choose_sm90_decode(bf16_problem(128, 32, 8, 1, 8192, 128), unknown, 0).decode.stays);
}

TEST(heuristics_decode, blocks_that_stay_go_by_number_where_all_lengths_are_equal_and_by_shares_elsewhere) {
  const auto shares = [](const AttentionProblem& problem) {
    const Sm90DecodeConfig config = choose_sm90_decode(problem, h200(), 0);
    EXPECT_TRUE(config.decode.stays);
    EXPECT_EQ(config.order.num_shares > 0, config.decode.ragged);
    return config.decode.ragged;
  };
  const AttentionProblem dense = bf16_problem(32, 32, 8, 1, 32768, 128);
  EXPECT_FALSE(shares(dense));
  EXPECT_TRUE(shares(ragged(dense)));
  EXPECT_TRUE(shares(paged_problem(32, 32, 8, 32768, 128, 64)));
  AttentionProblem packed = dense;
  packed.k_layout = SequenceLayout::Packed;
  EXPECT_TRUE(shares(packed));
  AttentionProblem queries = dense;
  queries.has_seqused_q = true;
  EXPECT_TRUE(shares(queries)) << "a sequence without rows reads no keys";
}

TEST(heuristics_decode, items_by_number_are_tiles_times_splits_in_whole_rounds_of_sequences) {
  Sm90DecodeConfig config = choose_sm90_decode(bf16_problem(32, 32, 8, 1, 32768, 128), h200(), 0);
  EXPECT_EQ(config.grid, 128) << "whole sequences of 8 heads on 132 processors";
  EXPECT_EQ(config.order, (Sm90DecodeOrder{.items = 32 * 8, .slots_in_flight = 2}));
  config = choose_sm90_decode(bf16_problem(8, 32, 8, 1, 131072, 128), h200(), 0);
  EXPECT_EQ(config.order.items, 8 * 8 * config.num_splits);
  EXPECT_EQ(kernel_name(config.decode),
            "sm90_decode_bf16_d128_v128_m8n128w5c1s6b1_l16s16_pack_split_stays_sm90");
  EXPECT_TRUE(choose_sm90_decode(bf16_problem(128, 32, 8, 1, 8192, 128), h200(), 1).decode.stays);
  EXPECT_FALSE(choose_sm90_decode(ragged(bf16_problem(128, 32, 8, 1, 8192, 128)), h200(), 1).decode.stays)
      << "asked-for splits are no shares";
}

AttentionProblem stored_as(DType dtype, AttentionProblem problem) {
  problem.kv_dtype = dtype;
  return problem;
}

TEST(heuristics_decode, keys_of_8_bits_have_tiles_of_as_many_bytes_where_blocks_stay) {
  EXPECT_EQ(name_of(stored_as(DType::F8E4M3, bf16_problem(64, 32, 8, 1, 8192, 128))),
            "sm90_decode_bf16_kvf8e4m3_d128_v128_m8n256w5c1s6b1_l16s16_pack_stays_sm90");
  EXPECT_EQ(name_of(stored_as(DType::F8E5M2, bf16_problem(64, 32, 8, 1, 8192, 256))),
            "sm90_decode_bf16_kvf8e5m2_d256_v256_m8n128w5c1s6b1_l16s16_pack_stays_sm90");
  EXPECT_EQ(name_of(stored_as(DType::I8, bf16_problem(16, 32, 8, 1, 1024, 128))),
            "sm90_decode_bf16_kvi8_d128_v128_m8n128w5c1s6b2_l16s16_pack_sm90");
  const auto in_flight = [](std::int64_t head_dim) {
    return choose_sm90_decode(stored_as(DType::I8, bf16_problem(128, 32, 8, 1, 8192, head_dim)), h200(), 0)
        .order.slots_in_flight;
  };
  EXPECT_EQ(in_flight(128), 2) << "of 32 KiB";
  EXPECT_EQ(in_flight(64), 4) << "half of each slot is empty";
}

TEST(heuristics_decode, half_the_bytes_stay_from_twice_the_keys_on) {
  const auto stays = [](DType dtype, std::int64_t seqlen_k) {
    return choose_sm90_decode(stored_as(dtype, bf16_problem(32, 32, 8, 1, seqlen_k, 128)), h200(), 0)
        .decode.stays;
  };
  EXPECT_TRUE(stays(DType::BF16, 4096));
  EXPECT_FALSE(stays(DType::F8E4M3, 2048));
  EXPECT_TRUE(stays(DType::F8E4M3, 8192));
}

TEST(heuristics_decode, keys_of_8_bits_are_gathered_from_any_pages) {
  EXPECT_EQ(name_of(stored_as(DType::F8E4M3, paged_problem(64, 32, 8, 8192, 128, 1))),
            "sm90_decode_bf16_kvf8e4m3_d128_v128_m8n256w6c1s6b1_l16s16_paged_pack_ragged_stays_gather_sm90");
  const auto tile_m = [](DType dtype, std::int64_t page_size) {
    return choose_sm90_decode(stored_as(dtype, paged_problem(4, 64, 4, 1024, 128, page_size)), h200(), 0)
        .decode.tile_m;
  };
  EXPECT_EQ(tile_m(DType::I8, 16), 16);
  EXPECT_EQ(tile_m(DType::I8, 1), 8) << "16 rows would spill";
  EXPECT_EQ(tile_m(DType::F8E5M2, 1), 8);
  EXPECT_EQ(tile_m(DType::BF16, 1), 16);
}

TEST(heuristics_decode, any_number_of_rows_reads_keys_of_8_bits_which_no_other_kernel_takes) {
  const AttentionProblem many = stored_as(DType::I8, bf16_problem(2, 32, 8, 1000, 4096, 128));
  EXPECT_EQ(decline_sm90_decode(many, h200()), std::nullopt);
  EXPECT_EQ(choose_sm90_decode(many, h200(), 1).tiles, 2 * 8 * 250);
  EXPECT_THAT(
      decline_sm90_decode(stored_as(DType::I8, bf16_problem(1 << 12, 32, 8, 1 << 16, 4096, 128)), h200()),
      Optional(HasSubstr("more work than one grid holds")));
}

TEST(heuristics_decode, rows_of_a_key_head_are_cut_into_equal_tiles_that_registers_hold) {
  const auto tile_m = [](std::int64_t group, std::int64_t seqlen_q, std::int64_t head_dim) {
    const AttentionProblem problem = bf16_problem(64, 2 * group, 2, seqlen_q, 4096, head_dim);
    EXPECT_EQ(decline_sm90_decode(problem, h200()), std::nullopt);
    const Sm90DecodeConfig config = choose_sm90_decode(problem, h200(), 1);
    EXPECT_EQ(config.tiles % 128, 0);
    return std::pair(config.decode.tile_m, config.tiles / 128);
  };
  EXPECT_EQ(tile_m(7, 1, 128), std::pair(8, std::int64_t{1}));
  EXPECT_EQ(tile_m(16, 1, 128), std::pair(16, std::int64_t{1}));
  EXPECT_EQ(tile_m(5, 4, 128), std::pair(16, std::int64_t{2}));
  EXPECT_EQ(tile_m(71, 1, 64), std::pair(24, std::int64_t{3}));
  EXPECT_EQ(tile_m(8, 4, 64), std::pair(16, std::int64_t{2}));
  EXPECT_EQ(tile_m(9, 1, 256), std::pair(8, std::int64_t{2}));
}

TEST(heuristics_decode, splits_are_as_many_as_keep_more_than_half_the_processors_reading) {
  EXPECT_EQ(splits_of(bf16_problem(1, 32, 8, 1, 1024, 128)), 8);
  EXPECT_EQ(splits_of(bf16_problem(1, 32, 8, 1, 131072, 128)), 16);
  EXPECT_EQ(splits_of(ragged(bf16_problem(1, 32, 8, 1, 131072, 128))), 1) << "keys are shared out";
  EXPECT_EQ(splits_of(bf16_problem(2, 32, 8, 1, 8192, 128)), 5);
  EXPECT_EQ(splits_of(bf16_problem(8, 32, 8, 1, 8192, 128)), 2);
  EXPECT_EQ(splits_of(bf16_problem(32, 32, 8, 1, 1024, 128)), 1);
  EXPECT_EQ(splits_of(bf16_problem(1, 32, 8, 1, 64, 128)), 1) << "one block of keys";
  EXPECT_EQ(splits_of(paged_problem(1, 32, 8, 1024, 128, 16)), 8);
}

TEST(heuristics_decode, eight_splits_of_few_tiles_are_a_cluster) {
  EXPECT_EQ(name_of(bf16_problem(1, 32, 8, 1, 4096, 128)),
            "sm90_decode_bf16_d128_v128_m8n128w5c1s3b2_l16s16_pack_split_cluster8_sm90");
  const auto clusters = [](std::int64_t batch, int splits) {
    return choose_sm90_decode(bf16_problem(batch, 32, 8, 1, 4096, 128), h200(), splits).decode.cluster;
  };
  EXPECT_FALSE(clusters(1, 4));
  EXPECT_TRUE(clusters(2, 8));
  EXPECT_FALSE(clusters(3, 8)) << "192 blocks";
}

TEST(heuristics_decode, more_splits_than_a_cluster_has_gain_more_than_their_merge_costs) {
  EXPECT_EQ(name_of(bf16_problem(1, 28, 4, 1, 4096, 128)),
            "sm90_decode_bf16_d128_v128_m8n128w5c1s3b2_l16s16_pack_split_cluster8_sm90")
      << "sixteen would read for 2 us less, and merge for 3";
  EXPECT_EQ(splits_of(bf16_problem(1, 28, 4, 1, 2048, 128)), 8);
  EXPECT_EQ(splits_of(bf16_problem(1, 28, 4, 1, 8192, 128)), 16) << "4 us less";
  EXPECT_EQ(splits_of(bf16_problem(1, 28, 4, 1, 32768, 128)), 18);
  EXPECT_EQ(splits_of(paged_problem(1, 32, 8, 1025, 128, 5)), 8) << "a ninth for one key";
  EXPECT_EQ(splits_of(bf16_problem(1, 32, 8, 1, 32768, 128)), 9);
  EXPECT_EQ(choose_sm90_decode(bf16_problem(1, 28, 4, 1, 4096, 128), h200(), 16).num_splits, 16);
}

TEST(heuristics_decode, a_last_wave_that_is_nearly_empty_is_split_away) {
  const Sm90DecodeConfig config = choose_sm90_decode(bf16_problem(34, 32, 8, 1, 1536, 128), h200(), 0);
  EXPECT_FALSE(config.decode.stays);
  EXPECT_EQ(config.tiles, 34 * 8) << "264 of them run at once";
  EXPECT_GT(config.num_splits, 1);
  EXPECT_EQ(config.grid, config.tiles * config.num_splits);
}

TEST(heuristics_decode, blocks_of_a_team_divide_the_tiles_of_a_sequence_and_leave_few_processors_idle) {
  const auto order = [](std::int64_t heads) {
    const Sm90DecodeOrder o =
        choose_sm90_decode(ragged(bf16_problem(64, heads, heads, 1, 32768, 128)), h200(), 0).order;
    EXPECT_EQ(o.team * o.rounds, heads);
    return std::pair(o.team, o.num_shares);
  };
  EXPECT_EQ(order(1), std::pair(1, 132));
  EXPECT_EQ(order(32), std::pair(32, 4));
  EXPECT_EQ(order(40), std::pair(10, 13)) << "teams of 40 or 20 would leave twelve idle";
  EXPECT_EQ(order(71), std::pair(1, 132));
  EXPECT_EQ(order(132), std::pair(132, 1));
}

TEST(heuristics_decode, work_that_32_bits_do_not_count_is_not_shared_out) {
  AttentionProblem paged = paged_problem(1 << 12, 32, 8, 1 << 20, 128, 64);
  EXPECT_TRUE(choose_sm90_decode(paged, h200(), 0).decode.stays);
  paged.batch = 1 << 16;
  EXPECT_FALSE(choose_sm90_decode(paged, h200(), 0).decode.stays);
}

TEST(heuristics_decode, asked_for_splits_are_taken_as_they_are) {
  EXPECT_EQ(choose_sm90_decode(bf16_problem(1, 32, 8, 1, 64, 128), h200(), 5).num_splits, 5);
  EXPECT_FALSE(choose_sm90_decode(bf16_problem(1, 32, 8, 1, 4096, 128), h200(), 1).decode.split);
}

TEST(heuristics_decode, no_sequences_are_no_work_whatever_the_buffers_hold) {
  AttentionProblem problem = bf16_problem(0, 32, 8, 1, 4096, 128);
  problem.q_layout = problem.k_layout = SequenceLayout::Packed;
  problem.total_q = 4;
  problem.total_k = 1 << 20;
  EXPECT_EQ(decline_sm90_decode(problem, h200()), std::nullopt);
  const Sm90DecodeConfig config = choose_sm90_decode(problem, h200(), 0);
  EXPECT_EQ(config.grid, 0);
  EXPECT_EQ(config.tiles, 0);
}

TEST(heuristics_decode, a_box_is_the_most_keys_that_divide_page_and_tile) {
  const auto box = [](std::int64_t head_dim, std::int64_t page_size) {
    const AttentionProblem problem = paged_problem(1, 8, 8, 4096, head_dim, page_size);
    return decode_box_keys(problem, choose_sm90_decode(problem, h200(), 0).decode);
  };
  EXPECT_EQ(box(128, 16), 16);
  EXPECT_EQ(box(128, 24), 8);
  EXPECT_EQ(box(128, 64), 64);
  EXPECT_EQ(box(128, 256), 128);
  EXPECT_EQ(box(64, 256), 128);
  const AttentionProblem dense = bf16_problem(1, 8, 8, 1, 4096, 128);
  EXPECT_EQ(decode_box_keys(dense, choose_sm90_decode(dense, h200(), 0).decode), 128);
}

TEST(heuristics_decode, pages_of_other_than_eights_are_gathered_by_two_warps) {
  for (const std::int64_t page_size : {1, 2, 3, 5, 12, 20, 100}) {
    EXPECT_EQ(name_of(paged_problem(16, 32, 8, 1024, 128, page_size)),
              "sm90_decode_bf16_d128_v128_m8n128w6c1s3b2_l16s16_paged_pack_gather_sm90");
  }
  EXPECT_EQ(name_of(paged_problem(1, 32, 8, 4096, 128, 1)),
            "sm90_decode_bf16_d128_v128_m8n128w6c1s3b2_l16s16_paged_pack_split_cluster8_gather_sm90");
  EXPECT_EQ(name_of(paged_problem(128, 32, 8, 8192, 128, 5)),
            "sm90_decode_bf16_d128_v128_m8n128w6c1s6b1_l16s16_paged_pack_ragged_stays_gather_sm90");
  EXPECT_EQ(name_of(paged_problem(16, 32, 8, 1024, 256, 1)),
            "sm90_decode_bf16_d256_v256_m8n64w6c1s3b2_l16s16_paged_pack_gather_sm90");
  for (const std::int64_t page_size : {8, 16, 24, 64}) {
    EXPECT_EQ(name_of(paged_problem(16, 32, 8, 1024, 128, page_size)),
              "sm90_decode_bf16_d128_v128_m8n128w5c1s3b2_l16s16_paged_pack_sm90");
  }
  AttentionProblem padded = paged_problem(16, 32, 8, 1024, 128, 5);
  padded.v.row += 4;
  EXPECT_THAT(decline_sm90_decode(padded, h200()), Optional(HasSubstr("strides of v"))) << "16 bytes at once";
}

TEST(heuristics_decode, what_it_does_not_take_is_named) {
  const auto reason = [](const AttentionProblem& problem) { return decline_sm90_decode(problem, h200()); };
  const AttentionProblem plain = bf16_problem(2, 32, 8, 1, 4096, 128);
  EXPECT_EQ(reason(plain), std::nullopt);

  EXPECT_THAT(decline_sm90_decode(plain, find_device("a100").value()),
              Optional(HasSubstr("compute capability 9.0, and a100 has 8.0")));
  EXPECT_THAT(decline_sm90_decode(plain, this_cpu()), Optional(HasSubstr("the device is a CPU")));
  EXPECT_THAT(reason(bf16_problem(2, 32, 8, 17, 4096, 128)),
              Optional(HasSubstr(
                  "up to 48 query rows of a key head with 4096 keys, and there are 68 (4 heads of 17)")));
  EXPECT_EQ(reason(bf16_problem(2, 32, 8, 12, 512, 128)), std::nullopt);
  EXPECT_THAT(reason(bf16_problem(2, 32, 8, 12, 511, 128)), Optional(HasSubstr("up to 16 query rows")));
  EXPECT_THAT(reason(bf16_problem(2, 32, 8, 1, 4096, 72)), Optional(HasSubstr("steps of 16")));
  EXPECT_THAT(reason(bf16_problem(2, 32, 8, 1, 4096, 512)), Optional(HasSubstr("up to 256")));
  EXPECT_THAT(reason(bf16_problem(2, 32, 8, 1, 0, 128)), Optional(HasSubstr("needs keys")));

  EXPECT_EQ(reason(bf16_problem(87381, 32, 8, 1, 4096, 128)), std::nullopt);
  EXPECT_THAT(reason(bf16_problem(87382, 32, 8, 1, 4096, 128)),
              Optional(HasSubstr("more work than one grid holds")))
      << "3 tiles of 1024 splits each";

  AttentionProblem changed = plain;
  changed.has_bias = true;
  EXPECT_THAT(reason(changed), Optional(HasSubstr("no bias")));
  changed = plain;
  changed.q_dtype = changed.kv_dtype = DType::F32;
  EXPECT_THAT(reason(changed), Optional(HasSubstr("q is f32")));
  changed = plain;
  changed.kv_dtype = DType::F16;
  EXPECT_THAT(reason(changed), Optional(HasSubstr("k and v in q's dtype")));
  changed = plain;
  changed.has_v_descale = true;
  EXPECT_THAT(reason(changed), Optional(HasSubstr("no descale factors"))) << "of 16-bit elements";
  changed.kv_dtype = DType::F8E4M3;
  EXPECT_EQ(reason(changed), std::nullopt);
  EXPECT_FALSE(choose_sm90_decode(changed, h200(), 0).decode.page_factors);
  changed.v_descale_per_page = true;
  EXPECT_TRUE(choose_sm90_decode(changed, h200(), 0).decode.page_factors);
  changed.v.row = 8 * 128 + 8;
  EXPECT_THAT(reason(changed), Optional(HasSubstr("strides of v that are positive multiples of 16 bytes")));
  changed = plain;
  changed.v.head = 100;
  EXPECT_THAT(reason(changed), Optional(HasSubstr("strides of v that are positive multiples of 16 bytes")));
}

}  // namespace
}  // namespace onepass
