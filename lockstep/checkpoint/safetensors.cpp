#include "lockstep/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

constexpr std::array<std::pair<const char*, at::ScalarType>, 19> kScalarTypes{{
    {"BOOL", at::kBool},
    {"U8", at::kByte},
    {"I8", at::kChar},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
    {"F8_E4M3FNUZ", at::kFloat8_e4m3fnuz},
    {"F8_E5M2FNUZ", at::kFloat8_e5m2fnuz},
    {"I16", at::kShort},
    {"U16", at::kUInt16},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I32", at::kInt},
    {"U32", at::kUInt32},
    {"F32", at::kFloat},
    {"C64", at::kComplexFloat},
    {"F64", at::kDouble},
    {"I64", at::kLong},
    {"U64", at::kUInt64},
}};

at::ScalarType scalar_type(const std::string& dtype) {
  for (const auto& [name, type] : kScalarTypes) {
    if (dtype == name) return type;
  }
  throw Error(
      fmt::format("no tensor type for the dtype {}", dtype));  // the header's check knows the same names
}

/// nullptr: the format has no such type.
const char* read_word(at::ScalarType type) {
  for (const auto& [word, its_type] : kScalarTypes) {
    if (type == its_type) return word;
  }
  return nullptr;
}

SafetensorsEntry describe(const std::string& name, const at::Tensor& tensor) {
  if (name == "__metadata__") throw ValueError("a tensor cannot be named __metadata__ in a safetensors file");
  if (!tensor.defined()) throw ValueError(fmt::format("tensor {} is undefined, so it cannot be saved", name));
  if (tensor.layout() != at::kStrided) {
    throw ValueError(fmt::format("tensor {} is not dense, so a safetensors file cannot hold it", name));
  }
  if (const char* const word = read_word(tensor.scalar_type())) return {name, word, tensor.sizes().vec()};
  throw ValueError(fmt::format("tensor {} has type {}, which a safetensors file cannot hold", name,
                               c10::toString(tensor.scalar_type())));
}

// Any other byte in a bool is undefined behavior for whoever reads it.
void check_bools(const void* data, uint64_t bytes, const std::string& tensor, const std::string& file) {
  const auto* values = static_cast<const uint8_t*>(data);
  if (std::any_of(values, values + bytes, [](uint8_t value) { return value > 1; })) {
    throw FileError(fmt::format("{}: tensor {:?}: a BOOL value is neither 0 nor 1", file, tensor));
  }
}

}  // namespace

void check_can_be_saved(const std::string& name, const at::Tensor& tensor) { describe(name, tensor); }

std::vector<SafetensorsEntry> safetensors_entries(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  entries.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) entries.push_back(describe(name, tensor));
  std::sort(entries.begin(), entries.end(), stands_before);
  return entries;
}

std::string safetensors_head(std::vector<SafetensorsEntry>& entries,
                             const std::map<std::string, std::string>& metadata) {
  const std::string header = format_safetensors_header(entries, metadata);
  const uint64_t bytes = header.size();
  if (bytes > kMaxHeaderBytes) {
    throw ValueError(fmt::format("the header of a safetensors file would have {} bytes, over the limit of {}",
                                 bytes, kMaxHeaderBytes));
  }
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + header;
}

std::string dtype_of(const at::Tensor& tensor) {
  if (const char* const word = read_word(tensor.scalar_type())) return word;
  throw ValueError(
      fmt::format("type {} is none that a safetensors file can hold", c10::toString(tensor.scalar_type())));
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : file_(path.string()), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (!fd_.valid() || ::fstat(fd_.get(), &status) != 0) {
    throw FileError(fmt::format("cannot open {}: {}", file_, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode))
    throw FileError(fmt::format("cannot read {}: it is not a regular file", file_));
  file_bytes_ = static_cast<uint64_t>(status.st_size);
  const uint64_t file_bytes = file_bytes_;
  uint64_t header_bytes = 0;
  if (file_bytes < sizeof header_bytes) {
    throw FileError(fmt::format("{}: truncated: {} bytes are no safetensors file", file_, file_bytes));
  }
  read_bytes(&header_bytes, sizeof header_bytes, 0, "the header's length");
  if (header_bytes > kMaxHeaderBytes) {
    throw FileError(
        fmt::format("{}: its header would have {} bytes, over the limit of {}: not a safetensors file", file_,
                    header_bytes, kMaxHeaderBytes));
  }
  data_start_ = sizeof header_bytes + header_bytes;
  if (data_start_ > file_bytes) {
    throw FileError(fmt::format("{}: truncated: its header should have {} bytes, the file ends after {}",
                                file_, header_bytes, file_bytes - sizeof header_bytes));
  }
  std::string json(header_bytes, '\0');
  read_bytes(json.data(), header_bytes, sizeof header_bytes, "the header");
  header_ = parse_safetensors_header(json, file_bytes - data_start_, file_);
}

void SafetensorsReader::read_bytes(void* destination, uint64_t bytes, uint64_t offset,
                                   const std::string& what) const {
  auto* to = static_cast<char*>(destination);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_.get(), to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw FileError(fmt::format("cannot read {} of {}: {}", what, file_, std::strerror(errno)));
    if (n == 0) throw FileError(fmt::format("{}: truncated while {} was read", file_, what));
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
}

at::Tensor SafetensorsReader::read(const SafetensorsEntry& entry) const {
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type(entry.dtype)));
  read_into(entry, tensor);
  return tensor;
}

void SafetensorsReader::read_into(const SafetensorsEntry& entry, at::Tensor& destination) const {
  if (!destination.is_cpu() || !destination.is_contiguous() || destination.is_conj() ||
      destination.is_neg() || destination.scalar_type() != scalar_type(entry.dtype)) {
    destination.copy_(read(entry));
    return;
  }
  const uint64_t bytes = entry.end - entry.begin;
  TORCH_INTERNAL_ASSERT(bytes == destination.nbytes());
  read_bytes(destination.data_ptr(), bytes, data_start_ + entry.begin,
             fmt::format("tensor {:?}", entry.name));
  if (destination.scalar_type() == at::kBool) check_bools(destination.data_ptr(), bytes, entry.name, file_);
}

std::map<std::string, at::Tensor> SafetensorsReader::map() const {
  void* const start =
      ::mmap(nullptr, file_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_.get(), 0);
  if (start == MAP_FAILED) throw FileError(fmt::format("cannot map {}: {}", file_, std::strerror(errno)));
  const std::shared_ptr<void> mapping(start,
                                      [bytes = file_bytes_](void* memory) { ::munmap(memory, bytes); });
  std::map<std::string, at::Tensor> tensors;
  for (const auto& entry : entries()) {
    const at::ScalarType type = scalar_type(entry.dtype);
    void* const data = static_cast<char*>(start) + data_start_ + entry.begin;
    const bool is_aligned = reinterpret_cast<uintptr_t>(data) % c10::elementSize(type) == 0;
    if (entry.begin == entry.end || !is_aligned) {  // not where another writer has aligned nothing
      tensors[entry.name] = read(entry);
      continue;
    }
    if (type == at::kBool) check_bools(data, entry.end - entry.begin, entry.name, file_);
    tensors[entry.name] = at::from_blob(
        data, entry.shape, [mapping](void*) {}, at::TensorOptions().dtype(type));
  }
  return tensors;
}

SafetensorsFile load_safetensors(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);
  SafetensorsFile file;
  file.metadata = reader.metadata();
  for (const auto& entry : reader.entries()) file.tensors[entry.name] = reader.read(entry);
  return file;
}

void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries = safetensors_entries(tensors);
  const std::string head = safetensors_head(entries, metadata);
  write_file_atomically(path, [&](const auto& append) {
    append(head);
    for (const auto& entry : entries) {
      // A conjugate lies in memory as what it is the conjugate of.
      const at::Tensor tensor =
          tensors.at(entry.name).detach().cpu().contiguous().resolve_conj().resolve_neg();
      append(std::string_view(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()));
    }
  });
}

}  // namespace lockstep::checkpoint
