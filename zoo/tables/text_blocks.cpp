#include "lockstep/zoo/tables/text_blocks.h"

#include <arrow/util/compression.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/zoo/tables/arrow_rows.h"

namespace lockstep::tables {

class TextBlocks::Input {
 public:
  virtual ~Input() = default;
  /// Up to `size` bytes; 0 at the end.
  virtual size_t read(char* to, size_t size) = 0;
};

namespace {

UniqueFd open_text(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) throw FileError(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
  struct stat status {};
  if (::fstat(fd.get(), &status) == 0 && S_ISDIR(status.st_mode)) {
    throw FileError(fmt::format("cannot read {}: it is a directory", path.string()));
  }
  return fd;
}

arrow::Compression::type choose_codec(TableCompression compression) {
  switch (compression) {
    case TableCompression::GZIP:
      return arrow::Compression::GZIP;
    case TableCompression::ZSTD:
      return arrow::Compression::ZSTD;
    case TableCompression::BZ2:
      return arrow::Compression::BZ2;
    case TableCompression::LZ4:
      return arrow::Compression::LZ4_FRAME;
    case TableCompression::NONE:
      break;
  }
  return arrow::Compression::UNCOMPRESSED;
}

// Plain reads, not Arrow's file: pipes can be read too.
template <typename Base>
class PlainInput : public Base {
 public:
  PlainInput(UniqueFd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  size_t read(char* to, size_t size) override {
    while (true) {
      const ssize_t n = ::read(fd_.get(), to, size);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) {
        throw FileError(fmt::format("cannot read {}: {}", path_.string(), std::strerror(errno)));
      }
    }
  }

 private:
  UniqueFd fd_;
  std::filesystem::path path_;
};

// Streams that follow each other, as gzip, zstd and others allow. Behind the last of gzip's members there may be zeros:
// tapes and block devices fill up their blocks.
template <typename Base>
class CompressedInput : public Base {
 public:
  CompressedInput(UniqueFd fd, TableCompression compression, std::filesystem::path path)
      : path_(path), compression_(compression), packed_(std::move(fd), std::move(path)) {
    codec_ = value_or_throw(arrow::util::Codec::Create(choose_codec(compression)), path_, kCannotBeUnpacked);
    decompressor_ = value_or_throw(codec_->MakeDecompressor(), path_, kCannotBeUnpacked);
  }
  size_t read(char* to, size_t size) override {
    while (true) {
      if (begin_ == end_ && !fetch()) {
        if (is_between_streams_) return 0;
        throw FileError(fmt::format("{} {}: it ends too early", path_.string(), kCannotBeUnpacked));
      }
      if (is_between_streams_ && !begin_stream()) continue;
      const auto result = value_or_throw(
          decompressor_->Decompress(static_cast<int64_t>(end_ - begin_), buffer_.data() + begin_,
                                    static_cast<int64_t>(size), reinterpret_cast<uint8_t*>(to)),
          path_, kCannotBeUnpacked);
      begin_ += static_cast<size_t>(result.bytes_read);
      is_between_streams_ = decompressor_->IsFinished();
      if (result.bytes_written > 0) return static_cast<size_t>(result.bytes_written);
      if (result.bytes_read == 0 && begin_ < end_ && !is_between_streams_)
        throw FileError(fmt::format("{} {}: no progress", path_.string(), kCannotBeUnpacked));
    }
  }

 private:
  static constexpr const char* kCannotBeUnpacked = "cannot be unpacked; is it whole?";
  static constexpr size_t kPackedBytes = size_t{64} << 10;

  bool fetch() {
    buffer_.resize(kPackedBytes);
    begin_ = 0;
    end_ = packed_.read(reinterpret_cast<char*>(buffer_.data()), buffer_.size());
    return end_ > 0;
  }

  // False if only zeros are left of what was fetched.
  bool begin_stream() {
    if (has_begun_ && compression_ == TableCompression::GZIP) {
      while (begin_ < end_ && buffer_[begin_] == 0) ++begin_;
      if (begin_ == end_) return false;
    }
    if (has_begun_) check(decompressor_->Reset(), path_, kCannotBeUnpacked);
    has_begun_ = true;
    is_between_streams_ = false;
    return true;
  }

  std::filesystem::path path_;
  TableCompression compression_;
  PlainInput<Base> packed_;
  std::unique_ptr<arrow::util::Codec> codec_{};
  std::shared_ptr<arrow::util::Decompressor> decompressor_{};
  std::vector<uint8_t> buffer_{};
  size_t begin_ = 0, end_ = 0;  // of what is fetched and not yet unpacked
  bool is_between_streams_ = true, has_begun_ = false;
};

}  // namespace

TextBlocks::TextBlocks(const std::filesystem::path& path, TableCompression compression, size_t block_bytes)
    : path_(path), block_bytes_(block_bytes) {
  auto fd = open_text(path);
  if (compression == TableCompression::NONE) {
    input_ = std::make_unique<PlainInput<Input>>(std::move(fd), path);
  } else {
    input_ = std::make_unique<CompressedInput<Input>>(std::move(fd), compression, path);
  }
}

TextBlocks::~TextBlocks() = default;

void TextBlocks::fill() {
  const size_t held = end_ - begin_;
  const size_t wanted = held < block_bytes_ ? block_bytes_ : 2 * held;
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, held);
  begin_ = 0;
  end_ = held;
  if (buffer_.size() < wanted || buffer_.size() > 2 * wanted) {
    buffer_.resize(wanted);
    buffer_.shrink_to_fit();
  }
  while (!at_end_ && end_ < wanted) {
    const size_t n = input_->read(buffer_.data() + end_, wanted - end_);
    at_end_ = n == 0;
    end_ += n;
  }
}

}  // namespace lockstep::tables
