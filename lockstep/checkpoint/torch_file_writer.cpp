#include "lockstep/checkpoint/torch_file_writer.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <exception>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::checkpoint {
namespace {

template <class T>
void append_number(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian, as the machine
}

void append_text(std::string& to, std::string_view text) {
  to += 'X';
  append_number(to, static_cast<uint32_t>(text.size()));
  to += text;
}

const char* storage_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return "FloatStorage";
  if (tensor.scalar_type() == at::kDouble) return "DoubleStorage";
  throw ValueError(
      fmt::format("a tensor of type {} cannot be written for torch.load; expected float32 or float64",
                  c10::toString(tensor.scalar_type())));
}

}  // namespace

TorchFileWriter::TorchFileWriter() : pickle_("\x80\x02") {}

void TorchFileWriter::add_none() { pickle_ += 'N'; }

void TorchFileWriter::add(bool value) { pickle_ += value ? '\x88' : '\x89'; }

void TorchFileWriter::append_integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    pickle_ += 'J';
    return append_number(pickle_, static_cast<int32_t>(value));
  }
  pickle_ += "\x8a\x08";
  append_number(pickle_, value);
}

void TorchFileWriter::add(int64_t value) { append_integer(value); }

void TorchFileWriter::add(double value) {
  pickle_ += 'G';
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) pickle_ += static_cast<char>(bits >> shift & 0xff);
}

void TorchFileWriter::add(std::string_view text) { append_text(pickle_, text); }

void TorchFileWriter::add(const at::Tensor& tensor) {
  const std::string storage = storage_of(tensor);
  pickle_ += "ctorch._utils\n_rebuild_tensor_v2\n((";
  append_text(pickle_, "storage");
  pickle_ += fmt::format("ctorch\n{}\n", storage);
  append_text(pickle_, std::to_string(tensors_.size()));
  append_text(pickle_, "cpu");
  append_integer(tensor.numel());
  pickle_ += "tQ";
  append_integer(0);
  int64_t stride = tensor.numel();
  pickle_ += '(';
  for (const int64_t size : tensor.sizes()) append_integer(size);
  pickle_ += "t(";
  for (const int64_t size : tensor.sizes()) append_integer(size == 0 ? 1 : stride /= size);
  pickle_ += 't';
  add(false);  // requires_grad
  pickle_ += "ccollections\nOrderedDict\n)RtR";
  tensors_.push_back(tensor);
}

void TorchFileWriter::begin_dict() { pickle_ += "}("; }
void TorchFileWriter::end_dict() { pickle_ += 'u'; }
void TorchFileWriter::begin_list() { pickle_ += "]("; }
void TorchFileWriter::end_list() { pickle_ += 'e'; }
void TorchFileWriter::begin_tuple() { pickle_ += '('; }
void TorchFileWriter::end_tuple() { pickle_ += 't'; }

void TorchFileWriter::save(const std::filesystem::path& path) {
  const std::string pickle = pickle_ + ".";
  write_file_atomically(path, [&](const auto& append) {
    std::exception_ptr
        failure;  // the C code between must not see an exception, nor the writer's destructor an error
    caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t size) {
      try {
        if (!failure) append(std::string_view(static_cast<const char*>(bytes), size));
      } catch (...) {
        failure = std::current_exception();
      }
      return size;
    });
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    writer.writeRecord("byteorder", "little", std::strlen("little"));
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const at::Tensor tensor = tensors_[t].detach().cpu().contiguous();
      writer.writeRecord("data/" + std::to_string(t), tensor.const_data_ptr(), tensor.nbytes());
    }
    writer.writeEndOfFile();
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace lockstep::checkpoint
