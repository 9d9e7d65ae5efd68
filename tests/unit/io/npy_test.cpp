#include "io/npy.h"

#include <cmath>
#include <limits>

#include "helpers.h"
#include "support/float_types.h"

namespace onepass::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A file as numpy.save writes it: magic, version, header length, padded header, data.
std::string npy_file(std::string header, std::string_view data, int version = 1) {
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  header.append(63 - (8 + length_bytes + header.size()) % 64, ' ');
  header += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (std::size_t i = 0; i < length_bytes; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + std::string(data);
}

std::string header_of(const std::string& descr, const std::string& shape, bool fortran_order = false) {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", descr,
                     fortran_order ? "True" : "False", shape);
}

template <class T>
std::string data_of(std::initializer_list<T> values) {
  std::string data(values.size() * sizeof(T), '\0');
  std::memcpy(data.data(), values.begin(), data.size());
  return data;
}

std::string message_for(const std::string& file, std::optional<DType> raw_type = {}) {
  return message_of([&] { parse_npy(bytes_of(file), raw_type); });
}

TEST(npy, bytes_that_numpy_save_writes_are_read) {
  // numpy.save(f, numpy.array([[1, 2, 3], [-4, 0.5, inf]], dtype='<f4')), byte for byte.
  const unsigned char preamble[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 0x76, 0};
  std::string file(std::begin(preamble), std::end(preamble));
  file += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  file.append(127 - file.size(), ' ');
  file += '\n';
  file += std::string("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\xc0\0\0\0\x3f\0\0\x80\x7f", 24);
  const HostTensor tensor = parse_npy(bytes_of(file));
  EXPECT_EQ(tensor.dtype, DType::F32);
  EXPECT_THAT(tensor.shape, ElementsAre(2, 3));
  EXPECT_THAT(tensor.strides, ElementsAre(3, 1));
  EXPECT_THAT(elements<float>(tensor.view()),
              ElementsAre(1, 2, 3, -4, 0.5f, std::numeric_limits<float>::infinity()));
}

TEST(npy, versions_1_2_and_3_are_read) {
  for (const int version : {1, 2, 3}) {
    const std::string file = npy_file(header_of("<i4", "(3,)"), data_of<std::int32_t>({7, -8, 9}), version);
    EXPECT_THAT(elements<std::int32_t>(parse_npy(bytes_of(file)).view()), ElementsAre(7, -8, 9)) << version;
  }
}

TEST(npy, fortran_order_becomes_strides) {
  const std::string file = npy_file(header_of("<f4", "(2, 3, 2)", true),
                                    data_of<float>({0, 100, 10, 110, 20, 120, 1, 101, 11, 111, 21, 121}));
  const HostTensor tensor = parse_npy(bytes_of(file));
  EXPECT_THAT(tensor.strides, ElementsAre(1, 2, 6));
  EXPECT_THAT(elements<float>(tensor.view()),
              ElementsAre(0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121));
}

TEST(npy, keys_in_any_order_double_quotes_python_2_longs_and_no_last_comma_are_read) {
  const std::string file =
      npy_file(R"({"shape":(2L,2), "fortran_order" : False,'descr':"<f4"})", data_of<float>({1, 2, 3, 4}));
  EXPECT_THAT(parse_npy(bytes_of(file)).shape, ElementsAre(2, 2));
}

TEST(npy, a_scalar_becomes_one_element_and_empty_arrays_stay_empty) {
  const HostTensor scalar = parse_npy(bytes_of(npy_file(header_of("<f4", "()"), data_of<float>({3}))));
  EXPECT_THAT(scalar.shape, ElementsAre(1));
  EXPECT_THAT(elements<float>(scalar.view()), ElementsAre(3));
  for (const bool fortran_order : {false, true}) {
    const HostTensor empty = parse_npy(bytes_of(npy_file(header_of("<f2", "(2, 0, 4)", fortran_order), "")));
    EXPECT_THAT(empty.shape, ElementsAre(2, 0, 4));
    EXPECT_EQ(empty.num_elements(), 0);
  }
}

TEST(npy, memory_is_aligned_to_64_bytes_wherever_the_data_begins) {
  for (const std::string header : {"{'descr':'<f4','fortran_order':False,'shape':(1,)}",
                                   "{'descr':'<f4','fortran_order':False,'shape':(1,)} "}) {
    const std::string file = std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' +
                             header + data_of<float>({5});
    const HostTensor tensor = parse_npy(bytes_of(file));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.storage.get()) % HostTensor::kAlignment, 0u);
    EXPECT_THAT(elements<float>(tensor.view()), ElementsAre(5));
  }
}

TEST(npy, every_dtype_comes_back_bit_for_bit) {
  std::mt19937 rng(std::random_device{}());
  for (const DType dtype : kAllDtypes) {
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{1},
                                                   {7},
                                                   {0},
                                                   {3, 0, 2},
                                                   {2, 3, 5, 7},
                                                   {1, 1, 1, 1, 1},
                                                   {2, 1, 3, 1, 4}}) {
      const HostTensor tensor = random_bits(dtype, shape, rng);
      MemorySink sink;
      write_npy(sink, tensor.view());
      const bool is_f8 = dtype_bytes(dtype) == 1;
      const HostTensor again = parse_npy(sink.bytes(), is_f8 ? std::optional(dtype) : std::nullopt);
      EXPECT_EQ(again.dtype, dtype);
      EXPECT_EQ(again.shape, shape);
      EXPECT_EQ(element_bits(again.view()), element_bits(tensor.view())) << dtype_name(dtype);
    }
  }
}

TEST(npy, views_with_any_strides_are_written_row_major) {
  std::mt19937 rng(std::random_device{}());
  for (const DType dtype : kAllDtypes) {
    const HostTensor buffer = random_bits(dtype, {20000}, rng);
    const auto* middle = buffer.storage.get() + 10000 * dtype_bytes(dtype);
    const std::vector<std::int64_t> shape = {3, 5, 7, 11};
    for (const std::vector<std::int64_t>& strides : {std::vector<std::int64_t>{385, 77, 11, 1},
                                                     {385, 11, 55, 1},
                                                     {1, 3, 15, 105},
                                                     {0, 0, 11, 1},
                                                     {7, -30, 2, -1},
                                                     {1000, 200, 20, 2}}) {
      const TensorView view = make_view(middle, dtype, shape, strides);
      MemorySink sink;
      write_npy(sink, view);
      const bool is_f8 = dtype_bytes(dtype) == 1;
      const HostTensor again = parse_npy(sink.bytes(), is_f8 ? std::optional(dtype) : std::nullopt);
      EXPECT_EQ(element_bits(again.view()), element_bits(view)) << dtype_name(dtype);
    }
  }
}

TEST(npy, a_strided_view_larger_than_the_buffer_is_written_whole) {
  std::mt19937 rng(std::random_device{}());
  const HostTensor tensor = random_bits(DType::F32, {300, 401}, rng);
  const TensorView turned = transpose(tensor.view(), 0, 1);
  MemorySink sink;
  write_npy(sink, turned);
  EXPECT_EQ(element_bits(parse_npy(sink.bytes()).view()), element_bits(turned));
}

TEST(npy, written_headers_are_numpys_and_data_begins_at_a_multiple_of_64) {
  const float value = 1;
  MemorySink sink;
  write_npy(sink, make_view(&value, DType::F32, {1}));
  const std::string file(reinterpret_cast<const char*>(sink.bytes().data()), sink.bytes().size());
  EXPECT_EQ(file, npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", data_of<float>({1})));
  EXPECT_EQ(file.size(), 128u + 4u);
}

TEST(npy, f64_and_i64_are_converted) {
  const double inf = std::numeric_limits<double>::infinity();
  const HostTensor floats = parse_npy(bytes_of(
      npy_file(header_of("<f8", "(6,)"), data_of<double>({0.1, -3, inf, -inf, std::nan(""), 1e-300}))));
  EXPECT_EQ(floats.dtype, DType::F32);
  const std::vector<float> values = elements<float>(floats.view());
  EXPECT_EQ(values[0], 0.1f);
  EXPECT_EQ(values[1], -3.0f);
  EXPECT_EQ(values[2], std::numeric_limits<float>::infinity());
  EXPECT_EQ(values[3], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(values[4]));
  EXPECT_EQ(values[5], 0.0f);

  const HostTensor ints = parse_npy(bytes_of(
      npy_file(header_of("<i8", "(2,)"), data_of<std::int64_t>({std::numeric_limits<std::int32_t>::max(),
                                                                std::numeric_limits<std::int32_t>::min()}))));
  EXPECT_EQ(ints.dtype, DType::I32);
  EXPECT_THAT(elements<std::int32_t>(ints.view()), ElementsAre(2147483647, -2147483647 - 1));
}

TEST(npy, long_arrays_are_converted_piece_by_piece_in_order) {
  const std::size_t count = 100'003;
  std::string data(count * sizeof(std::int64_t), '\0');
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::int64_t>(3 * i);
    std::memcpy(data.data() + i * sizeof value, &value, sizeof value);
  }
  const HostTensor tensor =
      parse_npy(bytes_of(npy_file(header_of("<i8", fmt::format("({},)", count)), data)));
  const std::vector<std::int32_t> values = elements<std::int32_t>(tensor.view());
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], static_cast<std::int32_t>(3 * i));
}

TEST(npy, values_that_the_target_type_cannot_hold_are_named) {
  EXPECT_THAT(message_for(npy_file(header_of("<f8", "(2,)"), data_of<double>({1, -1e39}))),
              AllOf(HasSubstr("holds -1e+39 in element 1"), HasSubstr("f32 cannot hold"),
                    HasSubstr("up to 3.4028235e+38")));
  EXPECT_THAT(message_for(npy_file(header_of("<i8", "(3,)"), data_of<std::int64_t>({0, 1, 2147483648}))),
              AllOf(HasSubstr("holds 2147483648 in element 2"), HasSubstr("i32 cannot hold"),
                    HasSubstr("up to 2147483647")));
  EXPECT_THAT(message_for(npy_file(header_of("<i8", "(1,)"), data_of<std::int64_t>({-2147483649}))),
              HasSubstr("holds -2147483649 in element 0"));
}

TEST(npy, raw_elements_are_read_as_the_type_that_is_named) {
  const std::string v2 = npy_file(header_of("<V2", "(1,)"), "\x80\x3f");  // 1.0 in bf16, 1.875 in f16
  EXPECT_EQ(parse_npy(bytes_of(v2)).dtype, DType::BF16);
  EXPECT_EQ(parse_npy(bytes_of(v2), DType::BF16).dtype, DType::BF16);
  EXPECT_EQ(parse_npy(bytes_of(v2), DType::F16).dtype, DType::F16);
  const std::string u2 = npy_file(header_of("<u2", "(1,)"), "\x80\x3f");
  const HostTensor bf16 = parse_npy(bytes_of(u2), DType::BF16);
  EXPECT_EQ(bf16.dtype, DType::BF16);
  EXPECT_EQ(load_float(bf16.storage.get(), bf16.dtype, 0), 1.0f);
  for (const std::string descr : {"|u1", "|V1", "<V1"}) {
    const std::string one_byte = npy_file(header_of(descr, "(1,)"), "\x38");
    EXPECT_EQ(load_float(parse_npy(bytes_of(one_byte), DType::F8E4M3).storage.get(), DType::F8E4M3, 0), 1.0f);
    EXPECT_EQ(load_float(parse_npy(bytes_of(one_byte), DType::F8E5M2).storage.get(), DType::F8E5M2, 0), 0.5f);
    EXPECT_THAT(message_for(one_byte), AllOf(HasSubstr(descr), HasSubstr("x.npy:f8e4m3 or x.npy:f8e5m2")));
    EXPECT_THAT(message_for(one_byte, DType::BF16), AllOf(HasSubstr(descr), HasSubstr("to be read as bf16")));
  }
  EXPECT_EQ(parse_npy(bytes_of(npy_file(header_of("<f1", "(1,)"), "\x38"))).dtype, DType::F8E5M2);
  const HostTensor i8 = parse_npy(bytes_of(npy_file(header_of("|i1", "(1,)"), "\xfe")));
  EXPECT_EQ(i8.dtype, DType::I8);
  EXPECT_EQ(load_float(i8.storage.get(), i8.dtype, 0), -2.0f);
  EXPECT_THAT(message_for(u2), HasSubstr("x.npy:bf16 or x.npy:f16"));
  EXPECT_THAT(message_for(u2, DType::F8E4M3), HasSubstr("to be read as f8e4m3"));
  EXPECT_THAT(message_for(npy_file(header_of("<f4", "(1,)"), "\0\0\0\0"), DType::BF16),
              HasSubstr("\"<f4\", to be read as bf16"));
}

TEST(npy, other_element_types_are_named) {
  EXPECT_THAT(message_for(npy_file(header_of(">f4", "(1,)"), data_of<float>({1}))),
              AllOf(StartsWith("parse_npy: \"memory\" holds elements of type \">f4\"."),
                    HasSubstr("newbyteorder('<')")));
  for (const std::string descr : {"|b1", "<c8", "<U3", "|O", "<f16", "<i2", "", "\x01"}) {
    EXPECT_THAT(message_for(npy_file(header_of(descr, "(1,)"), "0123456789abcdef")),
                AllOf(HasSubstr("holds elements of type"), HasSubstr("Allowed: <f4, <f2, <V2 (bf16)")))
        << descr;
  }
  EXPECT_THAT(
      message_for(npy_file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "0123")),
      HasSubstr("holds records"));
}

TEST(npy, too_many_dimensions_are_refused) {
  EXPECT_THAT(message_for(npy_file(header_of("<f4", "(1, 1, 1, 1, 1, 1)"), "0123")),
              AllOf(HasSubstr("has 6 dimensions, shape [1, 1, 1, 1, 1, 1]"), HasSubstr("at most 5")));
}

TEST(npy, damaged_headers_are_named_with_their_place) {
  const struct {
    const char* header;
    const char* message;
  } rows[] = {
      {"", "no '{' at byte"},
      {"garbage", "no '{' at byte 0"},
      {"{", "no string at byte"},
      {"{}", "no key \"descr\""},
      {"{'descr': '<f4'}", "no key \"fortran_order\""},
      {"{'descr': '<f4', 'fortran_order': False}", "no key \"shape\""},
      {"{'descr': '<f4', 'descr': '<f4'}", "a second key \"descr\" at byte 17"},
      {"{'shape': (1,), 'shape': (1,)}", "a second key \"shape\""},
      {"{'fortran_order': True, 'fortran_order': True}", "a second key \"fortran_order\""},
      {"{'nonsense': 1}", "an unknown key \"nonsense\" at byte 1"},
      {"{'descr' '<f4'}", "no ':' at byte"},
      {"{'descr': <f4}", "no string at byte 10"},
      {"{'descr': '<f4}", "a string without end"},
      {"{'descr': '<\\x664'}", "a string with an escape"},
      {"{'descr': '<f4' 'shape': (1,)}", "no '}' at byte"},
      {"{'fortran_order': 0}", "neither True nor False at byte 18"},
      {"{'shape': 3}", "no '(' at byte"},
      {"{'shape': (3)}", "a number in parentheses, which is no tuple"},
      {"{'shape': (3 4)}", "a number in parentheses, which is no tuple"},
      {"{'shape': (3, 4 5)}", "no ')' at byte"},
      {"{'shape': (-1,)}", "the negative extent -1 at byte 11"},
      {"{'shape': (9223372036854775808,)}", "an extent beyond 9223372036854775807"},
      {"{'shape': (1.5,)}", "a number in parentheses"},
      {"{'shape': (None,)}", "no whole number"},
      {"{'shape': (1, , 2)}", "no whole number"},
      {"{'shape': (((((((1,),),),),),),)}", "no whole number"},
      {"{'shape': (1,", "no whole number"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", "text after the closing '}'"},
  };
  for (const auto& row : rows) {
    EXPECT_THAT(message_for(npy_file(row.header, "0123")),
                AllOf(HasSubstr("has a damaged header: "), HasSubstr(row.message),
                      HasSubstr("Allowed: a header like")))
        << row.header;
  }
  std::string many = "{'shape': (";
  for (int i = 0; i < 65; ++i) many += "1, ";
  EXPECT_THAT(message_for(npy_file(many + ")}", "")), HasSubstr("more than 64 extents"));
}

TEST(npy, hostile_text_cannot_leave_its_line_or_break_utf8) {
  const std::string message =
      message_for(npy_file("{'a\nb\x1b[31m\xff" + std::string(5000, 'x') + "': 1}", ""));
  EXPECT_THAT(message, HasSubstr("a\\nb\\u001b[31m\xef\xbf\xbd"));
  EXPECT_LT(message.size(), 1000u);
}

TEST(npy, shapes_that_do_not_match_the_data_are_refused) {
  EXPECT_THAT(message_for(npy_file(header_of("<f4", "(2, 3)"), "0123")),
              AllOf(HasSubstr("has shape [2, 3] of \"<f4\", but 4 bytes of elements"),
                    HasSubstr("exactly 24 bytes of elements")));
  EXPECT_THAT(message_for(npy_file(header_of("<f4", "(1,)"), "01234")), HasSubstr("but 5 bytes of elements"));
  EXPECT_THAT(message_for(npy_file(header_of("<f4", "(0,)"), "0123")), HasSubstr("exactly 0 bytes"));
}

TEST(npy, products_that_overflow_are_refused) {
  for (const std::string shape :
       {"(4294967296, 4294967296)", "(2305843009213693952,)", "(9223372036854775807, 9223372036854775807)",
        "(0, 4611686018427387904, 4611686018427387904)", "(4611686018427387904, 0, 4)",
        // 2^32 * 2^32 * 4 wraps to 0 in 64 bits
        "(4294967296, 1073741824, 4)"}) {
    EXPECT_THAT(message_for(npy_file(header_of("<f4", shape), "")),
                AllOf(HasSubstr("0 bytes of elements"), HasSubstr("shapes of less than 2^63 bytes")))
        << shape;
  }
  EXPECT_THAT(message_for(npy_file(header_of("<f4", "(1000000000000,)"), "")),
              HasSubstr("exactly 4000000000000 bytes of elements"));
}

TEST(npy, other_files_and_versions_are_refused) {
  EXPECT_THAT(message_for(""), AllOf(HasSubstr("is empty"), HasSubstr("Allowed: a .npy file")));
  EXPECT_THAT(message_for("PK\x03\x04 a zip file"), HasSubstr("does not begin with \\x93NUMPY"));
  EXPECT_THAT(message_for("\x93NUMP"), HasSubstr("does not begin with"));
  EXPECT_THAT(message_for("\x93NUMPY"), HasSubstr("ends after 6 bytes"));
  for (const char* version : {"\x04\x00", "\x01\x01", "\x00\x00", "\xff\xff"}) {
    EXPECT_THAT(message_for("\x93NUMPY" + std::string(version, 2) + "v\0{}"),
                HasSubstr("has format version"));
  }
}

TEST(npy, header_lengths_outside_the_file_are_refused) {
  const std::string v1 = std::string("\x93NUMPY\x01\0\xff\xff", 10) + "{}";
  EXPECT_THAT(message_for(v1), HasSubstr("claims a header of 65535 bytes, but has 12 bytes"));
  const std::string v2 = std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12) + "{}";
  EXPECT_THAT(message_for(v2),
              AllOf(HasSubstr("claims a header of 4294967295 bytes"), HasSubstr("at most 1048576")));
  const std::string long_header = std::string("\x93NUMPY\x02\0\x01\0\x10\0", 12) + std::string(1 << 21, ' ');
  EXPECT_THAT(message_for(long_header), HasSubstr("claims a header of 1048577 bytes"));
}

TEST(npy, every_cut_is_refused) {
  const std::string file = npy_file(header_of("<f4", "(2, 3)"), data_of<float>({1, 2, 3, 4, 5, 6}));
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(message_for(file.substr(0, size)), "nothing thrown") << size;
  }
}

TEST(npy, every_changed_byte_is_read_or_refused) {
  const std::string file = npy_file(header_of("<i8", "(2, 3)"), data_of<std::int64_t>({1, 2, 3, 4, 5, 6}));
  for (std::size_t i = 0; i < file.size(); ++i) {
    for (const char value : changed_bytes(file[i])) {
      std::string changed = file;
      changed[i] = value;
      try {
        const HostTensor tensor = parse_npy(bytes_of(changed));
        EXPECT_EQ(tensor.num_elements(), 6);
      } catch (const InvalidArgument&) {
      }
    }
  }
}

TEST(npy, more_data_than_memory_is_an_environment_error) {
  const std::string header = npy_file(header_of("<f4", "(1099511627776, 1024)"), "");
  const SparseSource source(header, header.size() + (std::uint64_t{1} << 52));
  EXPECT_THAT(
      message_of<EnvironmentError>([&] {
        read_npy(source, {}, {"read_tensor", "big.npy"});
      }),
      AllOf(StartsWith("read_tensor: \"big.npy\" holds [1099511627776, 1024] of f32, 4503599627370496 bytes"),
            HasSubstr("tensors that fit into memory")));
}

}  // namespace
}  // namespace onepass::io
