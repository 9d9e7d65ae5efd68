#include "io/tensor_file.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "helpers.h"
#include "io/byte_source.h"

namespace onepass::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class tensor_file : public FolderTest {
 protected:
  tensor_file() {
    for (std::size_t i = 0; i < 6; ++i) data_[i] = static_cast<float>(i) + 0.5f;
  }
  TensorView view() const { return make_view(data_, DType::F32, {2, 3}); }

 private:
  float data_[6];
};

TEST_F(tensor_file, every_dtype_comes_back_from_both_formats) {
  std::mt19937 rng(std::random_device{}());
  for (const DType dtype : kAllDtypes) {
    const HostTensor tensor = random_bits(dtype, {2, 3, 5, 7}, rng);
    std::string npy = path("x.npy");
    write_tensor(npy, tensor.view());
    if (dtype == DType::F8E4M3 || dtype == DType::F8E5M2) npy += std::string(":") + dtype_name(dtype);
    const std::string safetensors = path("x.safetensors:a:b c");
    write_tensor(safetensors, tensor.view());
    for (const std::string& spec : {npy, safetensors, path("x.safetensors")}) {
      const HostTensor again = read_tensor(spec);
      EXPECT_EQ(again.dtype, dtype) << spec;
      EXPECT_EQ(again.shape, tensor.shape) << spec;
      EXPECT_EQ(element_bits(again.view()), element_bits(tensor.view())) << spec;
    }
  }
}

TEST_F(tensor_file, outputs_with_one_path_share_a_safetensors_file) {
  const float lse[2] = {7, 8};
  const std::array outputs = {OutputTensor{path("o.safetensors:out"), view()},
                              OutputTensor{path("other.npy"), view()},
                              OutputTensor{path("o.safetensors:lse"), make_view(lse, DType::F32, {2})}};
  write_tensors(outputs);
  EXPECT_THAT(names(), ElementsAre("o.safetensors", "other.npy"));
  EXPECT_THAT(elements<float>(read_tensor(path("o.safetensors:lse")).view()), ElementsAre(7, 8));
  EXPECT_EQ(element_bits(read_tensor(path("o.safetensors:out")).view()), element_bits(view()));
  EXPECT_EQ(element_bits(read_tensor(path("other.npy")).view()), element_bits(view()));
}

TEST_F(tensor_file, specs_are_split_at_the_ending) {
  std::filesystem::create_directory(path("a.safetensors:b"));
  write_tensor(path("c:d.npy"), view());
  write_tensor(path("m.safetensors:x.npy"), view());
  write_tensor(path("m.npy.safetensors:x"), view());
  EXPECT_EQ(read_tensor(path("c:d.npy")).shape.size(), 2u);
  EXPECT_EQ(read_tensor(path("m.safetensors:x.npy")).shape.size(), 2u);
  EXPECT_EQ(read_tensor(path("m.npy.safetensors")).shape.size(), 2u);
}

TEST_F(tensor_file, specs_that_name_no_tensor_are_refused) {
  const auto read = [](const std::string& spec) { return [spec] { read_tensor(spec, "onepass run: --q"); }; };
  for (const std::string spec : {"", "x", "x.npz", "x.NPY", "x.npy.gz", "x.safetensors.bak", ":x"}) {
    EXPECT_THAT(message_of(read(spec)),
                AllOf(StartsWith(fmt::format("onepass run: --q: \"{}\" names no", spec)),
                      HasSubstr("Allowed: x.npy or x.safetensors:name")));
  }
  EXPECT_THAT(message_of(read("x.npy:")), HasSubstr("asks for elements of type \"\""));
  EXPECT_THAT(message_of(read("x.npy:f32")), AllOf(HasSubstr("asks for elements of type \"f32\""),
                                                   HasSubstr(":bf16, :f16, :f8e4m3, :f8e5m2")));
  EXPECT_THAT(message_of(read("x.safetensors:")), HasSubstr("asks for the tensor \"\""));
  EXPECT_THAT(message_of(read("x.safetensors:__metadata__")),
              HasSubstr("asks for the tensor \"__metadata__\""));
  EXPECT_THAT(message_of(read("x.safetensors:\xff")), HasSubstr("names in UTF-8"));
}

TEST_F(tensor_file, inputs_that_are_no_files_are_refused) {
  const auto read = [this](const std::string& name) { return [spec = path(name)] { read_tensor(spec); }; };
  EXPECT_THAT(message_of(read("missing.npy")),
              AllOf(StartsWith("read_tensor: \"" + path("missing.npy") + "\" cannot be opened: No such file"),
                    HasSubstr("correct the path")));
  EXPECT_THAT(message_of(read("missing/x.safetensors:q")), HasSubstr("cannot be opened"));
  std::filesystem::create_directory(path("folder.npy"));
  EXPECT_THAT(message_of(read("folder.npy")), HasSubstr("is a folder"));
  ASSERT_EQ(::mkfifo(path("pipe.npy").c_str(), 0600), 0);
  EXPECT_THAT(message_of(read("pipe.npy")), HasSubstr("is not a regular file"));
  put("empty.npy", "");
  EXPECT_THAT(message_of(read("empty.npy")), HasSubstr("is empty"));
  EXPECT_THAT(message_of(read("line\nbreak.npy")), HasSubstr("line\\nbreak.npy\" cannot be opened"));
}

TEST_F(tensor_file, a_file_that_shrinks_while_it_is_read_is_refused) {
  const FileContext context{"read_tensor", put("x.npy", std::string(100, 'x'))};
  const FileSource source(context);
  std::filesystem::resize_file(context.path, 50);
  std::array<std::byte, 60> out;
  EXPECT_THAT(message_of([&] { source.read(0, out); }), HasSubstr("became shorter than 100 bytes"));
}

TEST_F(tensor_file, places_that_cannot_be_written_are_refused_before_and_at_the_call) {
  put("file", "");
  std::filesystem::create_directory(path("folder.npy"));
  ASSERT_EQ(::mkfifo(path("pipe.npy").c_str(), 0600), 0);
  const struct {
    std::string spec;
    const char* message;
  } rows[] = {
      {path("missing/x.npy"), "cannot be created: No such file or directory"},
      {path("file/x.npy"), "cannot be created: Not a directory"},
      {path("folder.npy"), "is a folder"},
      {path("pipe.npy"), "is not a regular file"},
      {path("x.txt"), "names no .npy or .safetensors file"},
      {path("x.safetensors"), "does not name the tensor"},
      {path("x.safetensors:"), "asks for the tensor \"\""},
      {path("x.npy:f64"), "asks for elements of type \"f64\""},
      {path(std::string(300, 'x') + ".npy"), "cannot be created: File name too long"},
      {"/proc/x.npy", "cannot be created"},
  };
  const std::set<std::string> before = names();
  for (const auto& row : rows) {
    EXPECT_THAT(message_of([&] { check_writable(row.spec, "onepass run: --out"); }),
                AllOf(StartsWith("onepass run: --out: "), HasSubstr(row.message)));
    EXPECT_THAT(message_of([&] { write_tensor(row.spec, view()); }), HasSubstr(row.message));
  }
  EXPECT_EQ(names(), before);
}

TEST_F(tensor_file, checking_a_place_changes_nothing) {
  check_writable(path("x.npy"));
  check_writable(path("x.safetensors:q"));
  EXPECT_THAT(names(), IsEmpty());
  put("x.npy", "kept");
  check_writable(path("x.npy"));
  EXPECT_EQ(contents("x.npy"), "kept");
  EXPECT_THAT(names(), ElementsAre("x.npy"));
}

TEST_F(tensor_file, views_that_cannot_be_written_are_refused) {
  const auto write = [this](const TensorView& v) { return [this, v] { write_tensor(path("x.npy"), v); }; };
  EXPECT_THAT(message_of(write({})), HasSubstr("is given no tensor"));
  TensorView gpu = view();
  gpu.device = DeviceKind::Cuda;
  EXPECT_THAT(message_of(write(gpu)), HasSubstr("is given a tensor on a GPU"));
  TensorView null = view();
  null.data = nullptr;
  EXPECT_THAT(message_of(write(null)), HasSubstr("is given [2, 3] without memory"));
  EXPECT_THAT(message_of([&] { write_tensor(path("x.npy:bf16"), view()); }),
              HasSubstr("is given f32 elements"));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(tensor_file, two_outputs_cannot_have_one_place) {
  std::filesystem::create_directory(path("sub"));
  const std::array<std::array<std::string, 2>, 3> pairs = {
      {{"x.npy", "x.npy"}, {"x.safetensors:q", "x.safetensors:q"}, {"x.npy", "sub/../x.npy"}}};
  for (const auto& [one, other] : pairs) {
    const std::array outputs = {OutputTensor{path(one), view()}, OutputTensor{path(other), view()}};
    EXPECT_THAT(message_of([&] { write_tensors(outputs); }), HasSubstr("is named for two outputs"));
    const std::array specs = {path(one), path(other)};
    EXPECT_THAT(message_of([&] { check_writable(specs, "onepass run"); }),
                AllOf(StartsWith("onepass run: "), HasSubstr("is named for two outputs")));
  }
  EXPECT_THAT(names(), ElementsAre("sub"));
}

TEST_F(tensor_file, a_replaced_file_keeps_its_permissions_and_links) {
  put("real.npy", "old");
  ASSERT_EQ(::chmod(path("real.npy").c_str(), 0640), 0);
  std::filesystem::create_symlink("real.npy", path("link.npy"));
  write_tensor(path("link.npy"), view());
  EXPECT_TRUE(std::filesystem::is_symlink(path("link.npy")));
  EXPECT_EQ(element_bits(read_tensor(path("real.npy")).view()), element_bits(view()));
  EXPECT_EQ(std::filesystem::status(path("real.npy")).permissions(), std::filesystem::perms{0640});
  EXPECT_THAT(names(), ElementsAre("link.npy", "real.npy"));
}

TEST_F(tensor_file, a_new_file_gets_the_permissions_of_the_umask) {
  const mode_t old_mask = ::umask(027);
  write_tensor(path("x.npy"), view());
  ::umask(old_mask);
  EXPECT_EQ(std::filesystem::status(path("x.npy")).permissions(), std::filesystem::perms{0640});
}

/// Files of this process end at a number of bytes, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  void (*old_handler_)(int);
  rlimit old_limit_{};
};

TEST_F(tensor_file, a_write_that_fails_leaves_every_old_file_and_nothing_else) {
  put("small.npy", "old small");
  put("large.safetensors", "old large");
  const HostTensor large = allocate_tensor(DType::F16, std::array<std::int64_t, 2>{100, 100});
  std::fill_n(large.storage.get(), large.num_bytes(), std::byte{1});
  const std::array outputs = {OutputTensor{path("small.npy"), view()},
                              OutputTensor{path("large.safetensors:x"), large.view()}};
  {
    const FileSizeLimit limit(4096);
    EXPECT_THAT(message_of<EnvironmentError>([&] { write_tensors(outputs, "onepass run"); }),
                AllOf(StartsWith("onepass run: \"" + path("large.safetensors") +
                                 "\" cannot be written: File too large"),
                      HasSubstr("a disk with room")));
  }
  EXPECT_EQ(contents("small.npy"), "old small");
  EXPECT_EQ(contents("large.safetensors"), "old large");
  EXPECT_THAT(names(), ElementsAre("large.safetensors", "small.npy"));
}

}  // namespace
}  // namespace onepass::io
