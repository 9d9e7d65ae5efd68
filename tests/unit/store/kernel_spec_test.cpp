#include "store/kernel_spec.h"

#include <gmock/gmock.h>

#include <random>
#include <string>

#include "onepass/error.h"
#include "store/source_writer.h"

namespace onepass {
namespace {

using ::testing::HasSubstr;

KernelSpec prefill_spec() {
  KernelSpec spec;
  spec.architecture = 90;
  spec.head_dim = spec.head_dim_v = 128;
  spec.tile_m = 128;
  spec.tile_n = 64;
  spec.min_blocks = 2;
  spec.paged = spec.split = true;
  return spec;
}

TEST(kernel_spec, the_name_lists_every_field) {
  EXPECT_EQ(kernel_name(prefill_spec()),
            "sm80_forward_bf16_d128_v128_m128n64w4c1s1b2_l16s16_paged_split_sm90");
}

TEST(kernel_spec, the_name_says_how_k_and_v_are_stored_if_not_as_q_is) {
  for (const auto& [dtype, text] :
       {std::pair{DType::F8E4M3, "f8e4m3"}, {DType::F8E5M2, "f8e5m2"}, {DType::I8, "i8"}}) {
    const std::string name =
        std::string("sm90_decode_f16_kv") + text + "_d128_v64_m8n128w5c1s6b2_l16s16_pack_sm90";
    const KernelSpec spec = parse_kernel_name(name);
    EXPECT_EQ(spec.kv_dtype, dtype);
    EXPECT_EQ(kernel_name(spec), name);
    EXPECT_EQ(shared_bytes(spec), 6 * 128 * 128 + 8 * (2 * 6 + 1));
  }
  EXPECT_EQ(prefill_spec().kv_dtype, std::nullopt);
}

KernelSpec hopper_spec() {
  KernelSpec spec;
  spec.family = KernelFamily::Sm90Forward;
  spec.architecture = 90;
  spec.head_dim = spec.head_dim_v = 128;
  spec.tile_m = spec.tile_n = 128;
  spec.num_warps = 12;
  spec.stages = 2;
  spec.two_query_stages = spec.two_probabilities = spec.mask_end = spec.mask_begin = spec.ticket = true;
  return spec;
}

TEST(kernel_spec, the_name_of_a_hopper_kernel_has_its_buffers_mask_and_tickets) {
  EXPECT_EQ(kernel_name(hopper_spec()),
            "sm90_forward_bf16_d128_v128_m128n128w12c1s2b1_l16s16_q2_p2_end_begin_ticket_sm90");
}

TEST(kernel_spec, shared_memory_of_a_hopper_kernel_is_its_rings_and_barriers) {
  KernelSpec spec = hopper_spec();
  constexpr std::size_t kTile = 128 * 128 * 2;
  EXPECT_EQ(shared_bytes(spec), (2 + 2 * 2) * kTile + 8 * (2 * 2 + 4 * 2 + 7) + (3 * 68 + 4));
  spec.two_query_stages = false;
  EXPECT_EQ(shared_bytes(spec), (1 + 2 * 2) * kTile + 8 * (2 * 1 + 4 * 2 + 7) + (3 * 68 + 4));
}

TEST(kernel_spec, shared_memory_of_a_decode_kernel_is_a_ring_of_keys_and_values_and_its_barriers) {
  const KernelSpec spec =
      parse_kernel_name("sm90_decode_bf16_d192_v128_m8n64w5c1s4b2_l16s16_paged_pack_split_sm90");
  EXPECT_EQ(spec.family, KernelFamily::Sm90Decode);
  EXPECT_EQ(num_threads(spec), 160);
  EXPECT_EQ(shared_bytes(spec), 4u * 64 * 192 * 2 + 8 * (2 * 4 + 1));
}

TEST(kernel_spec, of_the_warps_that_gather_keys_none_has_rows_to_join) {
  const KernelSpec gathers =
      parse_kernel_name("sm90_decode_bf16_d128_v128_m8n128w6c1s6b1_l16s16_paged_pack_stays_gather_sm90");
  EXPECT_TRUE(gathers.gather);
  EXPECT_EQ(num_threads(gathers), 192);
  EXPECT_EQ(shared_bytes(gathers),
            shared_bytes(
                parse_kernel_name("sm90_decode_bf16_d128_v128_m8n128w5c1s6b1_l16s16_paged_pack_stays_sm90")));
}

TEST(kernel_spec, factors_of_pages_take_room_for_a_slots_boxes_or_keys) {
  const auto bytes = [](const char* name) { return shared_bytes(parse_kernel_name(name)); };
  EXPECT_EQ(bytes("sm90_decode_bf16_kvi8_d128_v128_m8n128w5c1s6b2_l16s16_paged_pack_factors_sm90"),
            bytes("sm90_decode_bf16_kvi8_d128_v128_m8n128w5c1s6b2_l16s16_paged_pack_sm90") + 6 * 16 * 4);
  EXPECT_EQ(
      bytes("sm90_decode_bf16_kvi8_d128_v128_m8n128w6c1s6b2_l16s16_paged_pack_gather_factors_sm90"),
      bytes("sm90_decode_bf16_kvi8_d128_v128_m8n128w6c1s6b2_l16s16_paged_pack_gather_sm90") + 6 * 128 * 4);
}

TEST(kernel_spec, a_name_gives_its_spec_back_for_random_specs) {
  std::mt19937 random(7);
  const auto number = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int i = 0; i < 2000; ++i) {
    KernelSpec spec;
    spec.family = static_cast<KernelFamily>(number(0, static_cast<int>(KernelFamily::NaiveValues)));
    spec.architecture = number(80, 121);
    spec.dtype = number(0, 1) == 0 ? DType::F16 : DType::BF16;
    for (int KernelSpec::*member :
         {&KernelSpec::head_dim, &KernelSpec::head_dim_v, &KernelSpec::tile_m, &KernelSpec::tile_n,
          &KernelSpec::num_warps, &KernelSpec::column_groups, &KernelSpec::stages, &KernelSpec::min_blocks,
          &KernelSpec::load_bytes, &KernelSpec::store_bytes}) {
      spec.*member = number(0, 600);
    }
    for (bool KernelSpec::*member :
         {&KernelSpec::paged, &KernelSpec::score_terms, &KernelSpec::split, &KernelSpec::pack_gqa,
          &KernelSpec::two_query_stages, &KernelSpec::two_probabilities, &KernelSpec::mask_end,
          &KernelSpec::mask_begin, &KernelSpec::ticket, &KernelSpec::ragged, &KernelSpec::stays,
          &KernelSpec::cluster, &KernelSpec::gather, &KernelSpec::page_factors, &KernelSpec::parts}) {
      spec.*member = number(0, 1) == 1;
    }
    EXPECT_EQ(parse_kernel_name(kernel_name(spec)), spec) << kernel_name(spec);
  }
}

TEST(kernel_spec, a_damaged_name_is_refused_where_it_breaks) {
  const std::string name = kernel_name(prefill_spec());
  for (std::size_t length = 0; length < name.size(); ++length) {
    if (name.substr(length) == "0") continue;  // "..._sm9" is a name too
    EXPECT_THROW(parse_kernel_name(name.substr(0, length)), InvalidArgument) << name.substr(0, length);
  }
  try {
    parse_kernel_name(name + "x");
    FAIL() << "a name with a tail was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("stops making sense at \"x\""));
  }
}

TEST(kernel_spec, another_spelling_of_a_name_is_refused) {
  for (const char* spelling : {"merge_states_f16_d064_v0_m0n0w4c1s1b1_l16s16_sm80",
                               "merge_states_f16_d64_v-0_m0n0w4c1s1b1_l16s16_sm80"}) {
    EXPECT_THROW(parse_kernel_name(spelling), InvalidArgument) << spelling;
  }
}

TEST(kernel_spec, names_of_senseless_sizes_are_refused_or_have_finite_needs) {
  EXPECT_THROW(parse_kernel_name("sm80_forward_bf16_d64_v64_m4097n64w4c1s1b1_l16s16_sm80"), InvalidArgument);
  EXPECT_THROW(parse_kernel_name("sm80_forward_bf16_d99999999999_v64_m64n64w4c1s1b1_l16s16_sm80"),
               InvalidArgument);
  EXPECT_EQ(shared_bytes(parse_kernel_name("sm80_forward_bf16_d0_v0_m0n0w0c0s0b0_l0s0_sm0")), 0u);
  // the largest: (4096 queries + 4096 keys + 4096 values) * 8192 bytes
  EXPECT_EQ(shared_bytes(parse_kernel_name(
                "sm80_forward_bf16_d4096_v4096_m4096n4096w4096c1s4096b4096_l4096s4096_sm4096")),
            3 * 4096u * 8192u);
  EXPECT_GT(shared_bytes(parse_kernel_name(
                "sm90_forward_bf16_d4096_v4096_m4096n4096w4096c1s4096b4096_l4096s4096_sm4096")),
            std::size_t{4096} * 2 * 4096 * 8192);
}

TEST(kernel_spec, shared_memory_is_queries_keys_and_values) {
  KernelSpec spec = prefill_spec();
  EXPECT_EQ(shared_bytes(spec), (128u + 64 + 64) * 128 * 2);  // whole lines of 128 bytes are swizzled
  spec.head_dim = 80;
  EXPECT_EQ(shared_bytes(spec), (128u + 64) * (80 * 2 + 16) + 64 * 128 * 2);  // other rows are padded
  spec.head_dim_v = 70;  // products read 80 elements of a row
  EXPECT_EQ(shared_bytes(spec), (128u + 64 + 64) * (80 * 2 + 16));
}

TEST(kernel_spec, warps_that_share_rows_exchange_probabilities_and_statistics) {
  KernelSpec spec = prefill_spec();
  spec.column_groups = 2;
  EXPECT_EQ(shared_bytes(spec), (128u + 64 + 64) * 128 * 2 + 128 * (64 * 2 + 16) + 128 * 2 * 4);
  spec.head_dim_v = 192;  // each of the two has lines of 128 bytes and half of one, so rows are padded
  EXPECT_EQ(shared_bytes(spec),
            (128u + 64) * 128 * 2 + 64 * (192 * 2 + 16) + 128 * (64 * 2 + 16) + 128 * 2 * 4);
}

TEST(kernel_spec, shared_memory_has_room_for_the_output_of_a_tile) {
  KernelSpec spec = prefill_spec();
  spec.head_dim = 16;
  spec.head_dim_v = 512;
  spec.tile_n = 16;
  EXPECT_EQ(shared_bytes(spec), 128u * 512 * 2);
}

TEST(source_writer, the_source_names_the_kernel_and_asserts_what_the_host_assumes) {
  const std::string source = write_source(prefill_spec());
  EXPECT_THAT(source, HasSubstr("#include \"sm80/forward.cuh\""));
  EXPECT_THAT(source, HasSubstr(kernel_name(prefill_spec()) + "("));
  EXPECT_THAT(source, HasSubstr("kThreads == 128"));
  EXPECT_THAT(source, HasSubstr("kSharedBytes == 65536"));
  EXPECT_THAT(source, HasSubstr("__launch_bounds__(128, 2)"));
}

TEST(source_writer, a_hopper_kernel_has_products_of_its_widths_and_its_own_parameters) {
  KernelSpec spec = hopper_spec();
  spec.tile_n = 96;
  spec.head_dim_v = 80;
  spec.mask_begin = false;
  const std::string source = write_source(spec);
  EXPECT_THAT(source, HasSubstr("#include \"sm90/forward.cuh\""));
  EXPECT_THAT(source, HasSubstr("onepass::cuda::Sm90ForwardParams params"));
  EXPECT_THAT(source, HasSubstr("kQueryStages = 2;"));
  EXPECT_THAT(source, HasSubstr("kMaskEnd = true, kMaskBegin = false;"));
  EXPECT_THAT(source, HasSubstr("kTicket = true, kRagged = false;"));
  EXPECT_THAT(source, HasSubstr("void score_product(float (&d)[48]"));
  EXPECT_THAT(source, HasSubstr("void value_product(float (&d)[40]"));
  EXPECT_THAT(source, HasSubstr("__align__(1024)"));
}

TEST(source_writer, kernel_text_includes_nothing_but_itself) {
  const auto files = kernel_files();
  EXPECT_GE(files.size(), 10u);
  for (const KernelFile& file : files) {
    std::size_t at = 0;
    while ((at = file.text.find("#include", at)) != std::string_view::npos) {
      const std::size_t open = file.text.find('"', at);
      ASSERT_LT(open, file.text.find('\n', at)) << file.path << " includes a system header";
      const std::string_view target = file.text.substr(open + 1, file.text.find('"', open + 1) - open - 1);
      const bool known =
          std::any_of(files.begin(), files.end(), [&](const KernelFile& f) { return f.path == target; });
      EXPECT_TRUE(known) << file.path << " includes " << target;
      at = open;
    }
  }
}

}  // namespace
}  // namespace onepass
