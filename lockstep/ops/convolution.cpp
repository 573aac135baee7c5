#include "lockstep/ops/convolution.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/ops/node.h"
#include "lockstep/parallel/bucket_slot.h"

namespace lockstep::ops {
namespace {

constexpr auto kNHWC = at::MemoryFormat::ChannelsLast;

/// Sizes of a convolution; y before x.
struct ConvolutionShape {
  int64_t images, in, height, width, out;
  std::array<int64_t, 2> kernel, stride, padding, result;

  int64_t in_image() const { return height * width * in; }
  int64_t out_image() const { return result[0] * result[1] * out; }
  int64_t weight_row() const { return kernel[0] * kernel[1] * in; }
};

ConvolutionShape find_shape(const at::Tensor& input, const at::Tensor& weight, std::array<int64_t, 2> stride,
                            std::array<int64_t, 2> padding) {
  ConvolutionShape shape{input.size(0), input.size(1),  input.size(2),
                         input.size(3), weight.size(0), {weight.size(2), weight.size(3)},
                         stride,        padding,        {}};
  for (const size_t d : {0, 1}) {
    shape.result[d] =
        (input.size(2 + static_cast<int64_t>(d)) + 2 * padding[d] - shape.kernel[d]) / stride[d] + 1;
  }
  return shape;
}

/// Calls visit(output, input, weight, values) for each position of the output and each row of the kernel that
/// meets the image there. The first three are offsets in elements, for the first image and the first output
/// channel; `values`: how many neighbors, in the image as in the kernel.
template <class Visit>
void for_each_row(const ConvolutionShape& s, const Visit& visit) {
  for (int64_t oy = 0; oy < s.result[0]; ++oy) {
    for (int64_t ox = 0; ox < s.result[1]; ++ox) {
      const int64_t left = ox * s.stride[1] - s.padding[1], top = oy * s.stride[0] - s.padding[0];
      const int64_t from = std::max<int64_t>(0, -left), to = std::min(s.kernel[1], s.width - left);
      for (int64_t ky = std::max<int64_t>(0, -top); ky < std::min(s.kernel[0], s.height - top); ++ky) {
        visit((oy * s.result[1] + ox) * s.out, ((top + ky) * s.width + left + from) * s.in,
              (ky * s.kernel[1] + from) * s.in, (to - from) * s.in);
      }
    }
  }
}

/// A matrix in a tensor's memory, which is moved to other places without being made anew.
class Window {
 public:
  explicit Window(const at::Tensor& memory)
      : matrix_(memory.as_strided({1, 1}, {1, 1})), begin_(matrix_.storage_offset()) {}
  const at::Tensor& at(int64_t offset, std::array<int64_t, 2> sizes, std::array<int64_t, 2> strides) {
    matrix_.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, begin_ + offset);
    return matrix_;
  }

 private:
  at::Tensor matrix_;
  int64_t begin_;
};

/// result = keep * result + a b
void multiply_into(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b, bool keep) {
  at::addmm_out(const_cast<at::Tensor&>(result), result, a, b, keep ? 1 : 0);
}

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight, const ConvolutionShape& s) {
  const at::Tensor output = at::empty({s.images, s.out, s.result[0], s.result[1]}, input.options(), kNHWC);
  Window x(input), w(weight), y(output);
  int64_t last = -1;
  for_each_row(s, [&](int64_t to, int64_t from, int64_t tap, int64_t values) {
    multiply_into(y.at(to, {s.images, s.out}, {s.out_image(), 1}),
                  x.at(from, {s.images, values}, {s.in_image(), 1}),
                  w.at(tap, {values, s.out}, {1, s.weight_row()}), std::exchange(last, to) == to);
  });
  return output;
}

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight, const ConvolutionShape& s) {
  const at::Tensor result = at::empty({s.images, s.in, s.height, s.width}, gradient.options(), kNHWC).zero_();
  Window g(gradient), w(weight), x(result);
  for_each_row(s, [&](int64_t from, int64_t to, int64_t tap, int64_t values) {
    multiply_into(x.at(to, {s.images, values}, {s.in_image(), 1}),
                  g.at(from, {s.images, s.out}, {s.out_image(), 1}),
                  w.at(tap, {s.out, values}, {s.weight_row(), 1}), true);
  });
  return result;
}

/// Into `slot` where that is defined and lies as it must.
at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& input, const ConvolutionShape& s,
                           const at::Tensor& slot) {
  const at::Tensor result =
      slot.defined() && slot.is_contiguous(kNHWC)
          ? slot
          : at::empty({s.out, s.in, s.kernel[0], s.kernel[1]}, gradient.options(), kNHWC);
  result.zero_();
  Window g(gradient), x(input), w(result);
  for_each_row(s, [&](int64_t from, int64_t with, int64_t tap, int64_t values) {
    multiply_into(w.at(tap, {s.out, values}, {s.weight_row(), 1}),
                  g.at(from, {s.out, s.images}, {1, s.out_image()}),
                  x.at(with, {s.images, values}, {s.in_image(), 1}), true);
  });
  return result;
}

struct ConvolutionBackward : OperationNode {
  ConvolutionShape shape{};

  std::string name() const override { return "lockstep::ConvolutionBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    torch::autograd::variable_list results(2);
    if (!gradients[0].defined()) return results;
    const at::Tensor x = input.unpack(), w = weight.unpack();
    const bool wants_input = task_should_compute_output(0), wants_weight = task_should_compute_output(1);
    if (c10::GradMode::is_enabled()) {  // create_graph: by operations that can be differentiated again
      std::tie(results[0], results[1], std::ignore) = at::convolution_backward(
          gradients[0], x, w, std::nullopt, shape.stride, shape.padding, {1, 1},
          /*transposed=*/false, {0, 0}, /*groups=*/1, {wants_input, wants_weight, false});
      return results;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor gradient = gradients[0].contiguous(kNHWC);
    if (wants_input) results[0] = input_gradient(gradient, w.contiguous(kNHWC), shape);
    if (wants_weight) {
      const at::Tensor slot = bucket_slot(next_edge(1), gradient.scalar_type());
      results[1] = handed_out(weight_gradient(gradient, x.contiguous(kNHWC), shape, slot), slot);
    }
    return results;
  }
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.dim() == 4 && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
}

// The weight's gradient of a 1x1 convolution with a stride overruns oneDNN's memory where channels are fewer than a
// vector register has places, 8 with AVX2 and 16 with AVX-512 (github.com/uxlfoundation/oneDNN/issues/6035). A
// convolution without a stride, of the pixels that count alone, gives the same.
bool overruns(const torch::nn::Conv2dImpl& convolution, const at::Tensor& input) {
  constexpr int64_t kChannels = 16;  // of a vector register
  const auto& options = convolution.options;
  const auto& stride = *options.stride();
  const auto* const padding = std::get_if<torch::ExpandingArray<2>>(&options.padding());
  const bool is_padded = padding != nullptr
                             ? **padding != std::array<int64_t, 2>{0, 0}
                             : !std::holds_alternative<torch::enumtype::kValid>(options.padding());
  return *options.kernel_size() == std::array<int64_t, 2>{1, 1} && (stride[0] > 1 || stride[1] > 1) &&
         std::min(stride[0], stride[1]) > 0 && options.in_channels() < kChannels * options.groups() &&
         !is_padded && (input.dim() == 3 || input.dim() == 4);
}

}  // namespace

Conv2dImpl::Conv2dImpl(const torch::nn::Conv2dOptions& options) : torch::nn::Conv2dImpl(options) {
  weight.set_data(weight.detach().contiguous(kNHWC));
}

void Conv2dImpl::reset() {
  torch::nn::Conv2dImpl::reset();
  weight.set_data(weight.detach().contiguous(kNHWC));
}

std::shared_ptr<torch::nn::Module> Conv2dImpl::clone(const std::optional<torch::Device>& device) const {
  const at::NoGradGuard no_grad;
  auto copy = std::make_shared<Conv2dImpl>(
      torch::nn::Conv2dOptions(options.in_channels(), options.out_channels(), options.kernel_size())
          .stride(options.stride())
          .padding(options.padding())
          .dilation(options.dilation())
          .groups(options.groups())
          .bias(options.bias())
          .padding_mode(options.padding_mode()));
  if (copy->weight.scalar_type() != weight.scalar_type()) copy->to(weight.scalar_type());
  copy->weight.copy_(weight);
  copy->weight.requires_grad_(weight.requires_grad());
  if (bias.defined()) copy->bias.copy_(bias).requires_grad_(bias.requires_grad());
  if (device) copy->to(*device);
  copy->train(is_training());
  return copy;
}

at::Tensor Conv2dImpl::call_libtorch(const at::Tensor& input) {
  if (!overruns(*this, input)) return torch::nn::Conv2dImpl::forward(input);
  constexpr std::array<int64_t, 2> kOnes{1, 1}, kNone{0, 0};
  const auto& stride = *options.stride();
  const at::Tensor chosen = input.slice(-2, 0, std::nullopt, stride[0]).slice(-1, 0, std::nullopt, stride[1]);
  return at::conv2d(chosen, weight, bias.defined() ? std::optional(bias) : std::nullopt, kOnes,
                    at::IntArrayRef(kNone), kOnes, options.groups());
}

at::Tensor Conv2dImpl::forward(const at::Tensor& input) {
  constexpr int64_t kLeastImages = 16, kMostPositions = 64;
  const bool is_simple = options.groups() == 1 && !bias.defined() &&
                         std::holds_alternative<torch::enumtype::kZeros>(options.padding_mode()) &&
                         std::holds_alternative<torch::ExpandingArray<2>>(options.padding()) &&
                         *options.dilation() == std::array<int64_t, 2>{1, 1} && is_plain(input) &&
                         is_plain(weight) && input.scalar_type() == weight.scalar_type() &&
                         input.size(1) == weight.size(1) && input.size(0) >= kLeastImages &&
                         !has_tangent(input, weight) && !at::autocast::is_autocast_enabled(at::kCPU);
  if (!is_simple) return call_libtorch(input);
  const auto padding = *std::get<torch::ExpandingArray<2>>(options.padding());
  const auto stride = *options.stride();
  for (const size_t d : {size_t{0}, size_t{1}}) {  // LibTorch says what is wrong
    const auto side = static_cast<int64_t>(d) + 2;
    if (stride[d] <= 0 || padding[d] < 0 || input.size(side) == 0 ||
        input.size(side) + 2 * padding[d] < weight.size(side)) {
      return torch::nn::Conv2dImpl::forward(input);
    }
  }
  const ConvolutionShape shape = find_shape(input, weight, stride, padding);
  const bool is_small = shape.result[0] > 0 && shape.result[1] > 0 &&
                        shape.result[0] * shape.result[1] <= kMostPositions && padding[0] < shape.kernel[0] &&
                        padding[1] < shape.kernel[1];
  if (!is_small) return call_libtorch(input);
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    output = convolve(input.contiguous(kNHWC), weight.contiguous(kNHWC), shape);
  }
  if (needs_gradient(input, weight)) {
    auto node = make_node<ConvolutionBackward>();
    node->shape = shape;
    node->keep_input(input);
    node->keep_weight(weight);
    set_origin(output, std::move(node), input, weight);
  }
  return output;
}

}  // namespace lockstep::ops
