// A model's full weights as one file, each rank moving its own pieces.
#include "tessera/checkpoint/weights.hpp"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "checkpoint/agreement.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/version.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/plan/layout.hpp"

namespace tessera {

namespace {

using checkpoint::shown_name;

std::vector<TensorSpec> tensors_of(const FullyShard& model) {
  std::vector<TensorSpec> result;
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    for (const plan::ParameterSpec& parameter : model.unit(u).spec().parameters) {
      result.push_back({.name = parameter.name, .shape = parameter.shape, .dtype = DType::fp32});
    }
  }
  return result;
}

// What this rank owns of one tensor: elements [first, first + values.size()).
struct Piece {
  std::size_t tensor;  // in the order of tensors_of()
  std::size_t first;
  std::span<float> values;
};

void for_each_piece(FullyShard& model, const std::function<void(const Piece&)>& visit) {
  std::size_t tensors_before = 0;
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    const Unit& unit = model.unit(u);
    for (const ParameterPiece& piece : model.pieces(unit)) {
      visit({.tensor = tensors_before + unit.index_of(*piece.parameter), .first = piece.first, .values = piece.values});
    }
    tensors_before += unit.parameters().size();
  }
}

// What is wrong with the file, as a list; empty when it fits the model.
std::string differences(const SafetensorsReader& file, std::span<const TensorSpec> expected) {
  std::string list;
  const auto add = [&](const std::string& what) { list += (list.empty() ? "" : "; ") + what; };
  std::unordered_set<std::string_view> known;
  for (const TensorSpec& tensor : expected) {
    known.insert(tensor.name);
    const StoredTensor* stored = file.find(tensor.name);
    if (stored == nullptr) {
      add(fmt::format("tensor {} {} is missing", shown_name(tensor.name), to_string(tensor.shape)));
    } else if (stored->shape != tensor.shape) {
      add(fmt::format("tensor {} is {}, the model's is {}", shown_name(tensor.name), to_string(stored->shape),
                      to_string(tensor.shape)));
    } else if (!is_floating(*stored)) {
      add(fmt::format("tensor {} is {}, expected F32, BF16 or F16", shown_name(tensor.name), stored->dtype));
    }
  }
  for (const StoredTensor& stored : file.tensors()) {
    if (!known.contains(stored.name)) add(fmt::format("tensor {} is not in the model", shown_name(stored.name)));
  }
  return list;
}

}  // namespace

void dump_weights(FullyShard& model, const std::filesystem::path& path) {
  World& world = model.world();
  const std::map<std::string, std::string> metadata = {{"writer", "tessera " + std::string(version)}};
  SafetensorsWriter writer(path, tensors_of(model), metadata);
  const bool creates = world.rank() == 0;
  checkpoint::run_together(world, "dump_weights: create", [&] {
    if (creates) writer.create();
  });
  checkpoint::run_together(world, "dump_weights: write", [&] {
    if (!creates) writer.open();
    for_each_piece(model, [&](const Piece& piece) {
      writer.write(piece.tensor, Bytes(piece.first * sizeof(float)), std::as_bytes(piece.values));
    });
    writer.flush();
  });
  checkpoint::run_together(world, "dump_weights: finish", [&] {
    if (creates) writer.finish();
  });
}

void load_weights(FullyShard& model, const std::filesystem::path& path) {
  World& world = model.world();
  const std::vector<TensorSpec> tensors = tensors_of(model);
  std::optional<SafetensorsReader> reader;
  checkpoint::run_together(world, "load_weights: open", [&] {
    reader.emplace(path);
    const std::string list = differences(*reader, tensors);
    if (!list.empty()) throw DataError(fmt::format("{}: does not fit the model: {}", path.string(), list));
  });
  checkpoint::run_together(world, "load_weights: read", [&] {
    for_each_piece(model, [&](const Piece& piece) {
      reader->read_floats(*reader->find(tensors[piece.tensor].name), piece.first, piece.values);
    });
  });
  model.shards_changed();
}

}  // namespace tessera
