#include "io/safetensors.h"

#include "helpers.h"

namespace onepass::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string safetensors_file(const std::string& header, std::string_view data, std::uint64_t header_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header_bytes >> (8 * i) & 0xff);
  return file + header + std::string(data);
}

std::string safetensors_file(const std::string& header, std::string_view data) {
  return safetensors_file(header, data, header.size());
}

std::string message_for(const std::string& file, const std::string& name = "") {
  return message_of([&] { parse_safetensors(bytes_of(file), name); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  std::uint64_t begin, std::uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin,
                     end);
}

TEST(safetensors, bytes_that_the_reference_library_writes_are_read) {
  // {'b': f4 [[1, 2]], 'a': i4 [-1]} with metadata {'format': 'np'}; the header is padded to 8 bytes.
  std::string header =
      R"({"__metadata__":{"format":"np"},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::string file =
      safetensors_file(header, std::string("\xff\xff\xff\xff\0\0\x80\x3f\0\0\0\x40", 12));
  const HostTensor a = parse_safetensors(bytes_of(file), "a");
  EXPECT_EQ(a.dtype, DType::I32);
  EXPECT_THAT(elements<std::int32_t>(a.view()), ElementsAre(-1));
  const HostTensor b = parse_safetensors(bytes_of(file), "b");
  EXPECT_EQ(b.dtype, DType::F32);
  EXPECT_THAT(b.shape, ElementsAre(1, 2));
  EXPECT_THAT(elements<float>(b.view()), ElementsAre(1, 2));
}

TEST(safetensors, the_only_tensor_needs_no_name_and_several_are_listed) {
  EXPECT_EQ(
      parse_safetensors(bytes_of(safetensors_file("{" + entry("x", "F16", "[2]", 0, 4) + "}", "abcd"))).dtype,
      DType::F16);
  const std::string two = safetensors_file(
      "{" + entry("k", "F16", "[1]", 2, 4) + "," + entry("q", "F16", "[1]", 0, 2) + "}", "abcd");
  EXPECT_THAT(message_for(two), AllOf(HasSubstr("holds 2 tensors, and none is named"),
                                      HasSubstr(R"("k", "q")"), HasSubstr("x.safetensors:name")));
  EXPECT_THAT(message_for(two, "v"), AllOf(HasSubstr("holds no tensor \"v\""), HasSubstr(R"("k", "q")")));
  EXPECT_THAT(message_for(safetensors_file("{}", "")), HasSubstr("holds no tensor"));
  std::string many = "{";
  for (int i = 0; i < 100; ++i)
    many += (i > 0 ? "," : "") + entry(fmt::format("t{:03}", i), "U8", "[0]", 0, 0);
  EXPECT_THAT(message_for(safetensors_file(many + "}", "")),
              AllOf(HasSubstr("\"t000\""), HasSubstr("\"t011\" and 88 more"), Not(HasSubstr("t012"))));
}

TEST(safetensors, i64_and_f64_are_converted_and_a_scalar_becomes_one_element) {
  const std::string file =
      safetensors_file("{" + entry("i", "I64", "[1]", 0, 8) + "," + entry("f", "F64", "[]", 8, 16) + "}",
                       std::string("\xfe\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\x04\x40", 16));
  EXPECT_THAT(elements<std::int32_t>(parse_safetensors(bytes_of(file), "i").view()), ElementsAre(-2));
  const HostTensor scalar = parse_safetensors(bytes_of(file), "f");
  EXPECT_THAT(scalar.shape, ElementsAre(1));
  EXPECT_THAT(elements<float>(scalar.view()), ElementsAre(2.5f));
  const std::string large = safetensors_file("{" + entry("i", "I64", "[1]", 0, 8) + "}", "\1\1\1\1\1\1\1\1");
  EXPECT_THAT(message_for(large), HasSubstr("which i32 cannot hold"));
}

TEST(safetensors, several_tensors_of_every_dtype_come_back_bit_for_bit) {
  std::mt19937 rng(std::random_device{}());
  std::vector<HostTensor> tensors;
  std::vector<NamedTensor> named;
  for (const DType dtype : kAllDtypes) {
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{2, 3, 5, 7}, {0, 4}, {1}, {3}}) {
      tensors.push_back(random_bits(dtype, shape, rng));
      named.push_back(
          {fmt::format("{}/\"{}\" \xc3\xa9\n", dtype_name(dtype), tensors.size()), tensors.back().view()});
    }
  }
  named.push_back({"turned", transpose(tensors.front().view(), 1, 3)});
  MemorySink sink;
  write_safetensors(sink, named);
  for (const NamedTensor& tensor : named) {
    const HostTensor again = parse_safetensors(sink.bytes(), tensor.name);
    EXPECT_EQ(again.dtype, tensor.view.dtype);
    EXPECT_TRUE(std::equal(again.shape.begin(), again.shape.end(), tensor.view.shape.begin()));
    EXPECT_EQ(element_bits(again.view()), element_bits(tensor.view)) << tensor.name;
  }
}

TEST(safetensors, the_bytes_written_are_aligned_and_do_not_depend_on_the_order_of_tensors) {
  const float f32[2] = {1, 2};
  const std::uint8_t f8[3] = {1, 2, 3};
  const NamedTensor a = {"a", make_view(f8, DType::F8E4M3, {3})};
  const NamedTensor b = {"b", make_view(f32, DType::F32, {2})};
  MemorySink one, other;
  write_safetensors(one, {a, b});
  write_safetensors(other, {b, a});
  EXPECT_EQ(one.bytes(), other.bytes());
  const std::string text(reinterpret_cast<const char*>(one.bytes().data()), one.bytes().size());
  EXPECT_THAT(text, HasSubstr(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                              R"("a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[8,11]}})"));
  EXPECT_EQ((one.bytes().size() - 11) % 8, 0u);
}

TEST(safetensors, dtypes_beyond_ours_may_stand_in_the_file_but_not_be_asked_for) {
  const std::string file =
      safetensors_file("{" + entry("flag", "BOOL", "[3]", 0, 3) + "," + entry("tiny", "F4", "[5]", 3, 6) +
                           "," + entry("x", "F16", "[1]", 6, 8) + "}",
                       "01234567");
  EXPECT_EQ(parse_safetensors(bytes_of(file), "x").dtype, DType::F16);
  EXPECT_THAT(message_for(file, "flag"), AllOf(HasSubstr("holds tensor \"flag\" of dtype \"BOOL\""),
                                               HasSubstr("Allowed: F32, F16, BF16")));
  EXPECT_THAT(message_for(file, "tiny"), HasSubstr("of dtype \"F4\""));
}

TEST(safetensors, too_many_dimensions_are_refused_only_when_asked_for) {
  const std::string file = safetensors_file(
      "{" + entry("six", "F16", "[1,1,1,1,1,1]", 0, 2) + "," + entry("x", "F16", "[1]", 2, 4) + "}", "0123");
  EXPECT_EQ(parse_safetensors(bytes_of(file), "x").num_elements(), 1);
  EXPECT_THAT(message_for(file, "six"), HasSubstr("has 6 dimensions"));
}

TEST(safetensors, header_lengths_outside_the_file_are_refused) {
  EXPECT_THAT(message_for(""), AllOf(StartsWith("parse_safetensors: \"memory\" has 0 bytes."),
                                     HasSubstr("8 bytes of header length")));
  EXPECT_THAT(message_for("1234567"), HasSubstr("has 7 bytes"));
  EXPECT_THAT(message_for(safetensors_file("{}", "", 3)),
              HasSubstr("claims a header of 3 bytes, but has 10 bytes"));
  EXPECT_THAT(message_for(safetensors_file("{}", "", ~std::uint64_t{0})),
              HasSubstr("claims a header of 18446744073709551615 bytes"));
  EXPECT_THAT(message_for(safetensors_file("{}", "", std::uint64_t{1} << 63)),
              HasSubstr("claims a header of 9223372036854775808 bytes"));
}

TEST(safetensors, headers_beyond_100_mb_are_refused_unread) {
  const SparseSource source(safetensors_file("", "", 100'000'001), 200'000'000);
  EXPECT_THAT(message_of([&] {
                read_safetensors(source, "x", {"read_tensor", "x.safetensors"});
              }),
              AllOf(HasSubstr("claims a header of 100000001 bytes"), HasSubstr("at most 100000000 bytes")));
}

TEST(safetensors, damaged_headers_are_named) {
  const std::string good = entry("x", "F32", "[1]", 0, 4);
  const struct {
    std::string header;
    const char* message;
  } rows[] = {
      {"", "does not begin with {"},
      {" {}", "does not begin with {"},
      {"\xef\xbb\xbf{}", "does not begin with {"},
      {"[]", "does not begin with {"},
      {"{", "is not JSON (at byte 2)"},
      {"{" + good, "is not JSON"},
      {"{" + good + "}}", "is not JSON"},
      {"{" + good + "} x", "is not JSON"},
      {"{" + good + ",}", "is not JSON"},
      {"{'x': 1}", "is not JSON"},
      {"{\"x\": /* comment */ 1}", "is not JSON"},
      {"{\"\xff\": 1}", "is not JSON"},
      {"{\"x\": NaN}", "is not JSON"},
      {std::string("{\0}", 3), "is not JSON"},
      {"{" + good + "," + good + "}", "names \"x\" twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", "names \"__metadata__\" twice"},
      {R"({"x":1})", "has the number 1 where tensor \"x\" should be described"},
      {R"({"x":null})", "has null where"},
      {R"({"x":[]})", "has a list where"},
      {R"({"x":"y"})", "has the string \"y\" where"},
      {R"({"x":{}})", "gives tensor \"x\" no \"dtype\""},
      {R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", "gives tensor \"x\" no \"shape\""},
      {R"({"x":{"dtype":"F32","shape":[1]}})", "gives tensor \"x\" no \"data_offsets\""},
      {R"({"x":{"dtype":"F32","dtype":"F32"}})", "gives tensor \"x\" \"dtype\" twice"},
      {R"({"x":{"shape":[1],"shape":[1]}})", "gives tensor \"x\" \"shape\" twice"},
      {R"({"x":{"strides":[1]}})", "gives tensor \"x\" the unknown key \"strides\""},
      {R"({"x":{"dtype":4}})", "has the number 4 in \"dtype\" of tensor \"x\""},
      {R"({"x":{"dtype":["F32"]}})", "has a list in \"dtype\""},
      {R"({"x":{"dtype":{"a":1}}})", "has an object in \"dtype\""},
      {R"({"x":{"shape":4}})", "has the number 4 in \"shape\""},
      {R"({"x":{"shape":"4"}})", "has the string \"4\" in \"shape\""},
      {R"({"x":{"shape":["4"]}})", "has the string \"4\" in \"shape\""},
      {R"({"x":{"shape":[[4]]}})", "has a list in \"shape\""},
      {R"({"x":{"shape":[{}]}})", "has an object in \"shape\""},
      {R"({"x":{"shape":[-1]}})", "has the negative number -1 in \"shape\""},
      {R"({"x":{"shape":[1.5]}})", "has the number \"1.5\", which is not a whole number"},
      {R"({"x":{"shape":[1e3]}})", "has the number \"1e3\", which is not a whole number"},
      {R"({"x":{"shape":[true]}})", "has a boolean in \"shape\""},
      {R"({"x":{"shape":[null]}})", "has null in \"shape\""},
      {R"({"x":{"shape":[9223372036854775808]}})", "has the extent 9223372036854775808 in \"shape\""},
      {R"({"x":{"shape":[18446744073709551616]}})", "which is not a whole number below 2^64"},
      {R"({"x":{"data_offsets":[0]}})", "gives tensor \"x\" 1 data_offsets"},
      {R"({"x":{"data_offsets":[]}})", "gives tensor \"x\" 0 data_offsets"},
      {R"({"x":{"data_offsets":[0,1,2]}})", "has a third offset in \"data_offsets\""},
      {R"({"x":{"data_offsets":[-1,4]}})", "has the negative number -1 in \"data_offsets\""},
      {R"({"__metadata__":[]})", "has a list where tensor \"__metadata__\""},
      {R"({"__metadata__":{"a":1}})", "has the number 1 in \"__metadata__\""},
      {R"({"__metadata__":{"a":{}}})", "has an object in \"__metadata__\""},
      {R"({"__metadata__":{"a":["b"]}})", "has a list in \"__metadata__\""},
  };
  for (const auto& row : rows) {
    EXPECT_THAT(message_for(safetensors_file(row.header, "0123")), HasSubstr(row.message)) << row.header;
  }
  std::string many = R"({"x":{"shape":[1)";
  for (int i = 0; i < 64; ++i) many += ",1";
  EXPECT_THAT(message_for(safetensors_file(many + "]}}", "")), HasSubstr("more than 64 extents"));
}

TEST(safetensors, deep_nesting_is_refused_at_its_third_level) {
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string bomb = R"({"x":{"shape":[)";
    for (int i = 0; i < 1'000'000; ++i) bomb += open;
    EXPECT_THAT(message_for(safetensors_file(bomb, "")), HasSubstr("in \"shape\" of tensor \"x\""));
  }
}

TEST(safetensors, byte_ranges_that_do_not_fit_are_refused) {
  const auto with = [](const std::string& entries) {
    return safetensors_file("{" + entries + "}", "01234567");
  };
  EXPECT_THAT(message_for(with(entry("x", "F32", "[1]", 8, 4))),
              AllOf(HasSubstr("has tensor \"x\" at data_offsets [8, 4], but 8 bytes of data"),
                    HasSubstr("begin <= end <= bytes of data")));
  EXPECT_THAT(message_for(with(entry("x", "F32", "[3]", 0, 12))), HasSubstr("at data_offsets [0, 12]"));
  EXPECT_THAT(message_for(with(entry("x", "F32", "[1]", 18446744073709551612u, 18446744073709551615u))),
              HasSubstr("at data_offsets [18446744073709551612, 18446744073709551615]"));
  EXPECT_THAT(
      message_for(with(entry("x", "F32", "[1]", 0, 8))),
      AllOf(HasSubstr("has tensor \"x\" with shape [1] of F32 in 8 bytes"), HasSubstr("exactly 4 bytes")));
  EXPECT_THAT(message_for(with(entry("x", "BOOL", "[7]", 0, 8))), HasSubstr("exactly 7 bytes"));
  EXPECT_THAT(
      message_for(with(entry("x", "F32", "[1]", 4, 8))),
      AllOf(HasSubstr("has tensor \"x\" at byte 4 of the data, but the tensors before it end at byte 0"),
            HasSubstr("without holes and overlaps")));
  EXPECT_THAT(message_for(with(entry("x", "F32", "[1]", 0, 4))),
              HasSubstr("has 8 bytes of data, but its tensors end at byte 4"));
  EXPECT_THAT(message_for(with(entry("x", "F32", "[2]", 0, 8) + "," + entry("y", "F32", "[1]", 4, 8)), "x"),
              HasSubstr("has tensor \"y\" at byte 4 of the data, but the tensors before it end at byte 8"));
  EXPECT_THAT(message_for(with(entry("x", "F32", "[1]", 0, 4) + "," + entry("y", "F16", "[1]", 6, 8)), "x"),
              HasSubstr("has tensor \"y\" at byte 6"));
  EXPECT_THAT(message_for(with(entry("x", "unknown", "[1]", 0, 9))), HasSubstr("at data_offsets [0, 9]"));
}

TEST(safetensors, products_that_overflow_are_refused) {
  for (const std::string shape :
       {"[4294967296,4294967296]", "[9223372036854775807,9223372036854775807]", "[2305843009213693952]",
        "[0,4611686018427387904,4611686018427387904]", "[4294967296,1073741824,4]"}) {
    EXPECT_THAT(message_for(safetensors_file("{" + entry("x", "F32", shape, 0, 0) + "}", "")),
                AllOf(HasSubstr("has tensor \"x\" with shape"), HasSubstr("shapes of less than 2^63 bytes")))
        << shape;
  }
}

TEST(safetensors, every_cut_is_refused) {
  const std::string file = safetensors_file("{" + entry("x", "F32", "[2]", 0, 8) + "}", "01234567");
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(message_for(file.substr(0, size)), "nothing thrown") << size;
  }
}

TEST(safetensors, every_changed_byte_is_read_or_refused) {
  const std::string file =
      safetensors_file("{" + entry("x", "I64", "[1]", 0, 8) + "," + entry("y", "F16", "[1]", 8, 10) + "}",
                       std::string("\1\0\0\0\0\0\0\0yy", 10));
  for (std::size_t i = 0; i < file.size(); ++i) {
    for (const char value : changed_bytes(file[i])) {
      std::string changed = file;
      changed[i] = value;
      try {
        EXPECT_EQ(parse_safetensors(bytes_of(changed), "x").num_elements(), 1);
      } catch (const InvalidArgument&) {
      }
    }
  }
}

TEST(safetensors, names_are_text_and_not_reserved) {
  EXPECT_TRUE(valid_tensor_name("layer.0/q \"quoted\"\n\xc3\xa9"));
  EXPECT_FALSE(valid_tensor_name(""));
  EXPECT_FALSE(valid_tensor_name("__metadata__"));
  EXPECT_FALSE(valid_tensor_name("\xff"));
  EXPECT_FALSE(valid_tensor_name("cut \xc3"));
}

}  // namespace
}  // namespace onepass::io
