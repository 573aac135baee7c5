// Reads damaged copies of a file of torch.save(): torch_file_mutations FILE COUNT. Each is read, or refused with a FileError.
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/pickle.h"
#include "lockstep/checkpoint/torch_file.h"
#include "tests/checkpoint/temporary_folder.h"

namespace {

using namespace lockstep;
using Random = std::mt19937_64;

size_t below(Random& random, size_t limit) {
  return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
}

std::string damaged(std::string bytes, Random& random) {
  if (below(random, 8) == 0) return bytes.substr(0, below(random, bytes.size()));
  for (size_t n = 1 + below(random, 4); n > 0 && !bytes.empty(); --n) {
    const size_t at = below(random, bytes.size());
    switch (below(random, 5)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(random, 8));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(random, 256));
        break;
      case 2:
        bytes.erase(at, 1 + below(random, 16));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(random, bytes.size()), below(random, 32)));
        break;
      default:  // a number that is far too large
        for (size_t i = at; i < std::min(bytes.size(), at + 4); ++i) bytes[i] = '\xff';
    }
  }
  return bytes;
}

struct Archive {
  std::string pickle;
  std::vector<std::pair<std::string, std::string>> storages;
};

Archive open(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader reader(path);
  Archive archive;
  for (const auto& name : reader.getAllRecords()) {
    const auto [data, size] = reader.getRecord(name);
    const std::string bytes(static_cast<const char*>(data.get()), size);
    if (name == "data.pkl") archive.pickle = bytes;
    if (name.starts_with("data/")) archive.storages.emplace_back(name, bytes);
  }
  return archive;
}

std::string bytes_of(const Archive& archive) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  writer.writeRecord("data.pkl", archive.pickle.data(), archive.pickle.size());
  for (const auto& [name, storage] : archive.storages)
    writer.writeRecord(name, storage.data(), storage.size());
  writer.writeEndOfFile();
  return bytes;
}

/// Thousands of times, so without waiting for the disk, as ext4 does where a file is truncated and written again.
void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  if (!file.flush()) throw FileError("cannot write " + path.string());
}

struct Counts {
  size_t read = 0, refused = 0;
};

/// Touches every element.
void read_all(const std::filesystem::path& path, Counts& counts) {
  try {
    for (const auto& [name, tensor] : checkpoint::load_torch_file(path).tensors) tensor.contiguous().clone();
    ++counts.read;
  } catch (const FileError& error) {
    if (!std::string(error.what()).starts_with(path.string()))
      throw Error(fmt::format("no path in: {}", error.what()));
    ++counts.refused;
  }
}

int run(const std::string& path, size_t count) {
  const TemporaryFolder folder;
  const auto copy = folder.path() / "damaged.pt";
  const std::string whole = read_file(path);
  const Archive archive = open(path);
  Random random(17);
  Counts files, pickles, noise;
  for (size_t n = 0; n < count; ++n) {
    write_file(copy, damaged(whole, random));
    read_all(copy, files);
    Archive other = archive;
    other.pickle = damaged(archive.pickle, random);
    write_file(copy, bytes_of(other));
    read_all(copy, pickles);
    for (size_t i = 0; i < 10; ++i) {  // past the opcodes that nearly all random bytes end with
      std::string opcodes = "\x80\x02";
      constexpr std::string_view known =
          "(NKMJGX)]}t\x85\x86\x87"
          "aesuqhjcQRb.0\x88\x89\x8a\x8c\x94\x95";
      for (size_t length = below(random, 200); length > 0; --length) {
        opcodes += below(random, 3) == 0 ? static_cast<char>(below(random, 256))
                                         : known[below(random, known.size())];
      }
      try {
        const checkpoint::Pickle pickle(opcodes, "noise");
        ++noise.read;
      } catch (const FileError&) {
        ++noise.refused;
      }
    }
  }
  fmt::print("files {} {} pickles {} {} noise {} {}\n", files.read, files.refused, pickles.read,
             pickles.refused, noise.read, noise.refused);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("torch_file_mutations", [&] {
    if (argc != 3) throw lockstep::ValueError("usage: torch_file_mutations FILE COUNT");
    return run(argv[1], std::stoul(argv[2]));
  });
}
