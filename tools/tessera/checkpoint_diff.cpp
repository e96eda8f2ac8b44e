// `tessera checkpoint diff`: two checkpoints, tensor by tensor, a piece of each at a time.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>

#include "checkpoint_command.hpp"
#include "checkpoint_values.hpp"
#include "options.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "text.hpp"

namespace tools {

using tessera::Bytes;
using tessera::CheckpointReader;
using tessera::CheckpointTensor;
using tessera::TensorKind;

namespace {

constexpr std::size_t piece = std::size_t{1} << 20;  // elements that are compared at once

// How a tensor differs. Elements are compared by their bits, so two NaN of the same bits are equal.
struct Difference {
  TensorKind kind;
  std::string name;
  std::string what;  // where no element can be compared: "only in A", shapes or dtypes
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;
  std::optional<double> largest =
      std::nullopt;  // absolute difference; none where one of the two is NaN, or not floating point
};

struct Comparison {
  const CheckpointReader& a;
  const CheckpointReader& b;
  std::size_t compared = 0;  // tensors that both have
  std::vector<Difference> differences = {};
};

// The values of both sides, and room for a piece of each.
class Sides {
 public:
  Sides(const CheckpointReader& a, const CheckpointReader& b) : a_(a), b_(b) {}

  // Tensors of equal shape and dtype.
  Difference compare(TensorKind kind, const CheckpointTensor& a, const CheckpointTensor& b) {
    Difference difference{.kind = kind, .name = a.name, .what = {}, .elements = tessera::element_count(a.shape)};
    if (is_floating(a)) difference.largest = 0.0;
    for (std::uint64_t first = 0; first < difference.elements; first += piece) {
      const std::uint64_t count = std::min<std::uint64_t>(piece, difference.elements - first);
      const std::size_t width = element_bytes(a);
      read(a_, a, first, count, bytes_a_);
      read(b_, b, first, count, bytes_b_);
      if (bytes_a_ == bytes_b_) continue;
      for (std::size_t i = 0; i < count; ++i) {
        difference.differing +=
            std::memcmp(bytes_a_.data() + i * width, bytes_b_.data() + i * width, width) != 0 ? 1 : 0;
      }
      if (difference.largest) difference.largest = larger(*difference.largest, a.dtype, count);
    }
    return difference;
  }

 private:
  static void read(CheckpointValues& values, const CheckpointTensor& tensor, std::uint64_t first, std::uint64_t count,
                   std::vector<std::byte>& to) {
    to.resize(count * element_bytes(tensor));
    values.read(tensor, Bytes(first * element_bytes(tensor)), to);
  }

  // Returns the larger of `before` and the piece's largest; none once one of two that differ is NaN.
  std::optional<double> larger(double before, std::string_view dtype, std::uint64_t count) {
    floats_a_.resize(count);
    floats_b_.resize(count);
    widen(dtype, bytes_a_, floats_a_);
    widen(dtype, bytes_b_, floats_b_);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::bit_cast<std::uint32_t>(floats_a_[i]) == std::bit_cast<std::uint32_t>(floats_b_[i])) continue;
      const double distance = std::abs(static_cast<double>(floats_a_[i]) - static_cast<double>(floats_b_[i]));
      if (std::isnan(distance)) return std::nullopt;
      before = std::max(before, distance);
    }
    return before;
  }

  CheckpointValues a_;
  CheckpointValues b_;
  std::vector<std::byte> bytes_a_;
  std::vector<std::byte> bytes_b_;
  std::vector<float> floats_a_;
  std::vector<float> floats_b_;
};

void compare(Comparison& comparison, Sides& sides, TensorKind kind) {
  const auto add = [&](const std::string& name, std::string what) {
    comparison.differences.push_back({.kind = kind, .name = name, .what = std::move(what)});
  };
  for (const CheckpointTensor& a : comparison.a.tensors(kind)) {
    const CheckpointTensor* b = comparison.b.find(kind, a.name);
    if (b == nullptr) {
      add(a.name, "only in A");
      continue;
    }
    ++comparison.compared;
    if (a.shape != b->shape) {
      add(a.name, fmt::format("is {} in A and {} in B", tessera::to_string(a.shape), tessera::to_string(b->shape)));
    } else if (a.dtype != b->dtype) {
      add(a.name, fmt::format("is {} in A and {} in B", a.dtype, b->dtype));
    } else if (Difference difference = sides.compare(kind, a, *b); difference.differing > 0) {
      comparison.differences.push_back(std::move(difference));
    }
  }
  for (const CheckpointTensor& b : comparison.b.tensors(kind)) {
    if (comparison.a.find(kind, b.name) == nullptr) add(b.name, "only in B");
  }
}

std::string text_of(const Difference& difference) {
  if (!difference.what.empty()) {
    return fmt::format("{} {}: {}\n", to_string(difference.kind), printable(difference.name), difference.what);
  }
  const std::string largest = difference.largest ? fmt::format(", by at most {:g}", *difference.largest) : "";
  return fmt::format("{} {}: {} of {} elements differ{}\n", to_string(difference.kind), printable(difference.name),
                     grouped(difference.differing), grouped(difference.elements), largest);
}

std::string text_of(const Comparison& comparison) {
  std::string text =
      fmt::format("A: {}, step {}\nB: {}, step {}\n", comparison.a.folder().string(), comparison.a.manifest().step,
                  comparison.b.folder().string(), comparison.b.manifest().step);
  for (const Difference& difference : comparison.differences) text += text_of(difference);
  const std::string compared = counted(comparison.compared, "tensor", "tensors");
  if (comparison.differences.empty()) return text + fmt::format("equal: {}, bit by bit\n", compared);
  return text +
         fmt::format("{} in both, {}\n", compared, counted(comparison.differences.size(), "difference", "differences"));
}

Json json_of(const Difference& difference) {
  Json object = {{"kind", to_string(difference.kind)}, {"tensor", difference.name}};
  if (!difference.what.empty()) {
    object["what"] = difference.what;
    return object;
  }
  object["elements"] = difference.elements;
  object["differing"] = difference.differing;
  object["largest"] = Json(difference.largest);
  return object;
}

Json json_of(const Comparison& comparison) {
  Json differences = Json::array();
  for (const Difference& difference : comparison.differences) differences.push_back(json_of(difference));
  return {{"a", comparison.a.folder().string()},
          {"b", comparison.b.folder().string()},
          {"equal", comparison.differences.empty()},
          {"compared", comparison.compared},
          {"differences", differences}};
}

}  // namespace

bool run_checkpoint_diff(std::vector<std::string> arguments) {
  std::filesystem::path a;
  std::filesystem::path b;
  bool json = false;
  CommandLine options("Compares the tensors of two checkpoints, bit by bit.",
                      "Exit code: 1 when they differ. The state (step, sampler, loss scale) is not compared.",
                      "tessera checkpoint diff");
  options.place("A", a, "A checkpoint, or a folder of them for the latest");
  options.place("B", b, "Another one");
  options.flag("--json", json, "Prints JSON");
  if (!options.parse(std::move(arguments))) return true;
  const CheckpointReader reader_a(tessera::find_checkpoint(a));
  const CheckpointReader reader_b(tessera::find_checkpoint(b));
  Comparison comparison{reader_a, reader_b};
  Sides sides(reader_a, reader_b);
  for (const TensorKind kind : tessera::tensor_kinds) compare(comparison, sides, kind);
  fmt::print("{}", json ? object_text(json_of(comparison)) : text_of(comparison));
  return comparison.differences.empty();
}

}  // namespace tools
