#include "lockstep/checkpoint/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() {
    std::string name = (fs::temp_directory_path() / "lockstep-safetensors-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~SafetensorsTest() override { fs::remove_all(directory_); }

  fs::path path(const std::string& name) const { return directory_ / name; }

  static std::string with_length(const std::string& header, uint64_t length) {
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
  }
  static std::string file_of(const std::string& header, size_t data_bytes) {
    return with_length(header, header.size()) + std::string(data_bytes, '\0');
  }

  // The message of the error that reading `content` gives, or "" when there is none.
  std::string error_of(const std::string& content) {
    write_file_atomically(path("damaged"), content);
    try {
      load_safetensors(path("damaged"));
    } catch (const FileError& error) {
      return error.what();
    }
    return "";
  }

  fs::path directory_;
};

struct Malformed {
  const char* name;
  std::string content;
  std::vector<std::string> words;  // that the error must have
};

TEST_F(SafetensorsTest, RefusesMalformedFiles) {
  const auto file = file_of;
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::vector<Malformed> table{
      {"empty file", "", {"truncated"}},
      {"seven bytes", "1234567", {"truncated"}},
      {"header ends early", with_length("{}", 40), {"truncated", "40"}},
      {"data end early", file(good, 7), {"truncated", "\"a\""}},
      {"header over the limit", with_length("{}", 100'000'001), {"100000001", "limit"}},
      {"header length of all ones", with_length("{}", ~0ULL), {"limit"}},
      {"header without bytes", with_length("", 0), {"begin with {"}},
      {"header begins with a space", file(" {}", 0), {"begin with {"}},
      {"not JSON", file("{nope}", 0), {"not JSON"}},
      {"unfinished JSON", file(R"({"a":)", 0), {"not JSON"}},
      {"two values", file("{}{}", 0), {"not JSON"}},
      {"zero byte", file(std::string("{}\0", 3), 0), {"zero byte"}},
      {"invalid UTF-8", file("{\"\xff\":1}", 0), {"not JSON"}},
      {"a list", file("[]", 0), {"begin with {"}},
      {"tensor is a number", file(R"({"a":1})", 0), {"\"a\"", "a number", "expected an object"}},
      {"tensor is null", file(R"({"a":null})", 0), {"\"a\"", "null"}},
      {"nested objects", file(R"({"a":{"dtype":{}}})", 0), {"\"a\"", "dtype"}},
      {"nested lists", file(R"({"a":{"shape":[[1]]}})", 0), {"\"a\"", "shape"}},
      {"unknown field", file(R"({"a":{"color":"red"}})", 0), {"\"a\"", "color"}},
      {"no dtype", file(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8), {"\"a\"", "dtype is missing"}},
      {"no shape", file(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8), {"\"a\"", "shape is missing"}},
      {"no offsets", file(R"({"a":{"dtype":"F32","shape":[2]}})", 8), {"\"a\"", "data_offsets is missing"}},
      {"three offsets",
       file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8),
       {"\"a\"", "3 numbers"}},
      {"unknown dtype",
       file(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8),
       {"\"a\"", "F33"}},
      {"dtype too wide",
       file(R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}})", 8),
       {"\"a\"", "needs 16 bytes"}},
      {"shape too large",
       file(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
       {"\"a\"", "needs 12 bytes"}},
      {"negative size",
       file(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
       {"\"a\"", "-2"}},
      {"negative offset",
       file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", 8),
       {"\"a\"", "negative"}},
      {"fraction", file(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8), {"\"a\"", "2.5"}},
      {"size over 2^63",
       file(R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]}})", 8),
       {"\"a\"", "too large"}},
      {"offset over 2^64",
       file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616]}})", 8),
       {"\"a\"", "2^64"}},
      {"product overflows",
       file(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
       {"\"a\"", "overflows"}},
      {"product overflows to 8",
       file(R"({"a":{"dtype":"F32","shape":[2,4611686018427387905],"data_offsets":[0,8]}})", 8),
       {"\"a\"", "overflows"}},
      {"offsets reversed",
       file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
       {"\"a\"", "before they begin"}},
      {"offset far away",
       file(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}})",
            8),
       {"\"a\"", "too large"}},
      {"hole at the start",
       file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
       {"\"a\"", "hole"}},
      {"hole between",
       file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
            12),
       {"\"b\"", "hole"}},
      {"overlap",
       file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            8),
       {"\"b\"", "overlapping"}},
      {"same data twice",
       file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
            R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
            8),
       {"\"b\"", "overlapping"}},
      {"duplicate name",
       file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            8),
       {"\"a\"", "twice"}},
      {"duplicate field",
       file(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       {"\"a\"", "dtype", "twice"}},
      {"trailing bytes", file(good, 9), {"1 trailing"}},
      {"only trailing bytes", file("{}", 3), {"3 trailing"}},
      {"metadata is a number", file(R"({"__metadata__":1})", 0), {"__metadata__", "a number"}},
      {"metadata value is a number",
       file(R"({"__metadata__":{"a":1}})", 0),
       {"__metadata__", "\"a\"", "string"}},
      {"metadata key twice",
       file(R"({"__metadata__":{"a":"1","a":"2"}})", 0),
       {"__metadata__", "\"a\"", "twice"}},
      {"bool of 2",
       file(R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", 0) + "\2",
       {"\"a\"", "BOOL"}},
  };
  for (const auto& malformed : table) {
    const std::string message = error_of(malformed.content);
    EXPECT_NE(message, "") << malformed.name << " was accepted";
    EXPECT_NE(message.find("damaged"), std::string::npos) << malformed.name << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << malformed.name << ": " << message;
    for (const auto& word : malformed.words) {
      EXPECT_NE(message.find(word), std::string::npos) << malformed.name << ": " << message;
    }
  }
}

TEST_F(SafetensorsTest, ErrorIsOneLineForAnyName) {
  const std::string message = error_of(file_of(R"({"a\n\u0000b":1})", 0));
  EXPECT_NE(message.find(R"(a\n\u0000b)"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST_F(SafetensorsTest, MissingFileAndDirectoryAreNamed) {
  EXPECT_THROW(load_safetensors(path("missing")), FileError);
  EXPECT_THROW(load_safetensors(directory_), FileError);
}

TEST_F(SafetensorsTest, SavesViewsScalarsAndEmptyTensors) {
  const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
  save_safetensors(path("f"),
                   {{"transposed", base.t()},
                    {"scalar", at::ones({})},
                    {"empty", at::ones({3, 0, 2}, at::kLong)},
                    {"part", base.narrow(1, 2, 3)}},
                   {{"key", "value"}});
  const auto file = load_safetensors(path("f"));
  EXPECT_EQ(file.tensors.size(), 4u);
  EXPECT_TRUE(at::equal(file.tensors.at("transposed"), base.t()));
  EXPECT_TRUE(at::equal(file.tensors.at("part"), base.narrow(1, 2, 3)));
  EXPECT_EQ(file.tensors.at("scalar").dim(), 0);
  EXPECT_EQ(file.tensors.at("empty").sizes(), (at::IntArrayRef{3, 0, 2}));
  EXPECT_EQ(file.metadata.at("key"), "value");
}

TEST_F(SafetensorsTest, ReadIntoConvertsAndFillsInPlace) {
  const at::Tensor values = at::rand({5, 3});
  save_safetensors(path("f"), {{"x", values}});
  const SafetensorsReader reader(path("f"));
  at::Tensor same = at::ones({5, 3});
  const void* memory = same.data_ptr();
  reader.read_into(reader.entries()[0], same);
  EXPECT_TRUE(at::equal(same, values));
  EXPECT_EQ(same.data_ptr(), memory);
  at::Tensor wider = at::ones({5, 3}, at::kDouble);
  reader.read_into(reader.entries()[0], wider);
  EXPECT_TRUE(at::equal(wider, values.to(at::kDouble)));
}

TEST_F(SafetensorsTest, RefusesTensorsThatTheFormatCannotHoldAndWritesNothing) {
  EXPECT_THROW(save_safetensors(path("f"), {{"x", at::ones({2}, at::kComplexDouble)}}), ValueError);
  EXPECT_THROW(save_safetensors(path("f"), {{"x", at::Tensor()}}), ValueError);
  EXPECT_THROW(save_safetensors(path("f"), {{"__metadata__", at::ones({2})}}), ValueError);
  EXPECT_THROW(save_safetensors(path("no/such/directory/f"), {{"x", at::ones({2})}}), FileError);
  EXPECT_TRUE(fs::is_empty(directory_));
}

// Whatever bytes are damaged, reading ends with tensors or with an error that names the file.
TEST_F(SafetensorsTest, RandomDamageNeverCrashes) {
  save_safetensors(path("f"), {{"a", at::rand({3, 2})},
                               {"b.weight", at::ones({4}, at::kBool)},
                               {"c", at::arange(3, at::kLong)},
                               {"empty", at::ones({0})}});
  const std::string original = read_file(path("f"));
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = original;
    const int flips = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < flips; ++i)
      damaged[random() % damaged.size()] ^= static_cast<char>(1U << (random() % 8));
    if (round % 5 == 0) damaged.resize(random() % damaged.size());
    if (round % 7 == 0) damaged.insert(random() % (damaged.size() + 1), std::string(random() % 9, '['));
    // Not through the atomic writer: 3000 times fsync would take long.
    std::ofstream(path("damaged"), std::ios::binary) << damaged;
    try {
      load_safetensors(path("damaged"));
    } catch (const FileError& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("damaged"), std::string::npos);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(SafetensorsTest, AConjugateIsWrittenAsItsValues) {
  const at::Tensor z = at::complex(at::rand({2, 3}), at::rand({2, 3}) + 1);
  save_safetensors(path("z"), {{"z", z.conj()}});
  EXPECT_TRUE(at::equal(load_safetensors(path("z")).tensors.at("z"), z.conj().resolve_conj()));
}

}  // namespace
}  // namespace lockstep::checkpoint
