// Answers questions about lockstep_vision for the tests in Python: a line of JSON in, a line of JSON out. Pixels and
// tensors go through raw files.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/zoo/vision/cifar.h"
#include "lockstep/zoo/vision/decode.h"
#include "lockstep/zoo/vision/idx.h"
#include "lockstep/zoo/vision/picture_dataset.h"
#include "lockstep/zoo/vision/picture_folder.h"
#include "lockstep/zoo/vision/picture_set.h"
#include "tests/probe.h"

namespace {

using nlohmann::json;
using namespace lockstep;
using namespace lockstep::vision;

void write(const std::string& path, const void* data, size_t bytes) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

json decode(const json& q) {
  const std::string path = q.at("path");
  const auto picture = decode_picture(read_file(path), path);
  write(q.at("output"), picture.pixels.data(), picture.pixels.size());
  return {picture.channels, picture.height, picture.width};
}

PaddingMode padding_mode_of(const std::string& name) {
  const std::vector<std::string> names{"constant", "edge", "reflect", "symmetric"};
  return static_cast<PaddingMode>(std::find(names.begin(), names.end(), name) - names.begin());
}

at::Tensor transformed(const json& q, const at::Tensor& images) {
  const std::string name = q.at("name");
  const auto numbers = [&] { return q.at("numbers").get<std::vector<double>>(); };
  if (name == "resize") return resize(images, q.at("height"), q.at("width"), q.at("antialias"));
  if (name == "crop") {
    std::vector<CropPosition> positions;
    for (const auto& [top, left] : q.at("positions").get<std::vector<std::pair<int64_t, int64_t>>>())
      positions.push_back({top, left});
    return crop(images, q.at("padding"), positions, q.at("height"), q.at("width"),
                padding_mode_of(q.value("mode", "constant")), q.value("fill", std::array<double, 3>{}));
  }
  if (name == "horizontal_flip") return horizontal_flip(images, q.at("numbers").get<std::vector<uint8_t>>());
  if (name == "rotate") {
    return rotate(images, numbers(), q.at("bilinear") ? Interpolation::bilinear : Interpolation::nearest);
  }
  if (name == "adjust_brightness") return adjust_brightness(images, numbers());
  if (name == "adjust_contrast") return adjust_contrast(images, numbers());
  if (name == "adjust_saturation") return adjust_saturation(images, numbers());
  if (name == "adjust_hue") return adjust_hue(images, numbers());
  if (name == "normalize")
    return normalize(images, q.at("mean").get<std::array<double, 3>>(),
                     q.at("std").get<std::array<double, 3>>());
  if (name == "mixup") return mixup(images, q.at("lambda"));
  if (name == "cutmix") {
    const auto box = q.at("box").get<std::array<int64_t, 4>>();
    return cutmix(images, {.top = box[0], .left = box[1], .bottom = box[2], .right = box[3]});
  }
  throw std::runtime_error("vision_probe: unknown transform " + name);
}

json transform(const json& q) {
  std::string bytes = read_file(q.at("input").get<std::string>());
  const auto images = at::from_blob(bytes.data(), q.at("shape").get<std::vector<int64_t>>(), at::kFloat);
  const auto made = transformed(q, images).contiguous();
  write(q.at("output"), made.const_data_ptr(), made.nbytes());
  return made.sizes().vec();
}

PictureTransforms transforms_of(const json& q) {
  PictureTransforms t;
  t.size = q.value("size", t.size);
  t.antialias = q.value("antialias", t.antialias);
  t.crop_padding = q.value("crop_padding", t.crop_padding);
  t.crop_padding_mode = padding_mode_of(q.value("crop_padding_mode", "constant"));
  t.crop_fill = q.value("crop_fill", t.crop_fill);
  t.flip_probability = q.value("flip_probability", t.flip_probability);
  t.rotation_degrees = q.value("rotation_degrees", t.rotation_degrees);
  t.brightness = q.value("brightness", t.brightness);
  t.contrast = q.value("contrast", t.contrast);
  t.saturation = q.value("saturation", t.saturation);
  t.hue = q.value("hue", t.hue);
  return t;
}

json draw(const json& q) {
  json all = json::array();
  for (const int64_t sample : q.at("samples").get<std::vector<int64_t>>()) {
    const auto d = draw_transform(transforms_of(q.at("transforms")), q.at("seed"), q.at("epoch"), sample);
    all.push_back({{"top", d.crop.top},
                   {"left", d.crop.left},
                   {"flips", d.flips},
                   {"angle", d.angle},
                   {"factors", {d.brightness, d.contrast, d.saturation, d.hue}},
                   {"order", d.order}});
  }
  return all;
}

Mixing mixing_of(const json& q) {
  return {.mixup_alpha = q.value("mixup_alpha", 0.0), .cutmix_alpha = q.value("cutmix_alpha", 0.0)};
}

json draw_mixings(const json& q) {
  json all = json::array();
  for (const int64_t sample : q.at("samples").get<std::vector<int64_t>>()) {
    const auto d =
        draw_mixing(mixing_of(q), q.at("seed"), q.at("epoch"), sample, q.at("height"), q.at("width"));
    all.push_back({{"cuts", d.cuts},
                   {"lambda", d.lambda},
                   {"box", {d.box.top, d.box.left, d.box.bottom, d.box.right}}});
  }
  return all;
}

std::shared_ptr<PictureSet> open(const json& q) {
  const auto split = q.at("split") == "train" ? PictureSplit::train : PictureSplit::test;
  const std::string directory = q.at("directory");
  if (q.contains("records_per_file")) {
    const CifarOptions options{.records_per_file = q.at("records_per_file")};
    return q.at("kind") == "cifar10" ? cifar10(directory, split, options)
                                     : cifar100(directory, split, options);
  }
  return open_pictures(directory, split);
}

json describe(const json& q) {
  const auto set = open(q);
  json labels = json::array(), sources = json::array();
  for (int64_t i = 0; i < set->size(); ++i) {
    labels.push_back(set->label(i));
    sources.push_back(set->source(i));
  }
  return {{"classes", set->classes()},
          {"may_be_mirrored", set->may_be_mirrored()},
          {"labels", labels},
          {"sources", sources}};
}

// All samples of a list in batches, made by a loader with so many workers.
json batches(const json& q) {
  const auto epoch = std::make_shared<std::atomic<int64_t>>(q.at("epoch").get<int64_t>());
  const auto dataset = picture_dataset(open(q), {.transforms = transforms_of(q.at("transforms")),
                                                 .mixing = mixing_of(q.value("mixing", json::object())),
                                                 .num_classes = q.value("num_classes", 0),
                                                 .seed = q.at("seed"),
                                                 .epoch = epoch});
  DataLoader loader(dataset, q.at("samples").get<std::vector<int64_t>>(),
                    {.batch_size = q.at("batch_size"), .num_workers = q.at("workers")});
  std::ofstream output(q.at("output").get<std::string>(), std::ios::binary);
  json labels = json::array(), shape;
  for (const Batch& batch : loader) {
    const auto& image = batch["image"];
    shape = image.sizes().vec();
    output.write(static_cast<const char*>(image.const_data_ptr()),
                 static_cast<std::streamsize>(image.nbytes()));
    const auto& label = batch["label"];
    for (int64_t i = 0; i < label.size(0); ++i) {
      if (label.dim() == 1) labels.push_back(label[i].item<int64_t>());
      if (label.dim() == 2)
        labels.push_back(std::vector<float>(label[i].const_data_ptr<float>(),
                                            label[i].const_data_ptr<float>() + label.size(1)));
    }
  }
  return {{"labels", labels}, {"shape", shape}};
}

// A set whose file loses its end while it is in use.
json cut_off(const json& q) {
  const auto set = open(q);
  std::filesystem::resize_file(q.at("file").get<std::string>(), q.at("bytes").get<uintmax_t>());
  set->pixels(0);
  return "read";
}

json answer(const json& q) {
  const std::string ask = q.at("ask");
  if (ask == "decode") return decode(q);
  if (ask == "transform") return transform(q);
  if (ask == "draw") return draw(q);
  if (ask == "draw_mixings") return draw_mixings(q);
  if (ask == "set") return describe(q);
  if (ask == "cut_off") return cut_off(q);
  if (ask == "batches") return batches(q);
  throw std::runtime_error("vision_probe: unknown question " + ask);
}

}  // namespace

int main() { return lockstep::testing::answer_questions("vision_probe", answer); }
