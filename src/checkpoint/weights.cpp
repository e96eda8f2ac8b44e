// A model's full weights as one file, each rank moving its own pieces.
#include "tessera/checkpoint/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/hash.hpp"
#include "checkpoint/channel.hpp"
#include "checkpoint/differences.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/json_form.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "shard/pieces.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/plan/layout.hpp"
#include "tessera/version.hpp"

namespace tessera {

namespace {

using checkpoint::Pause;
using checkpoint::shown_name;

std::string name_in_file(const plan::UnitSpec& unit, const plan::ParameterSpec& parameter, std::size_t variant) {
  return plan::name_of_variant(unit, parameter, variant);
}
std::string name_in_file(const plan::UnitSpec& unit, const plan::BufferSpec& buffer, std::size_t variant) {
  return plan::name_of_variant(unit, buffer.name, variant);
}
Shape shape_in_file(const plan::ParameterSpec& parameter) {
  return plan::whole_shape(parameter.shape, parameter.slice);
}
Shape shape_in_file(const plan::BufferSpec& buffer) { return buffer.shape; }

// A model's file has its parameters, and its buffers behind them, of all roles.
struct ModelTensors {
  // The tensors of this rank's units have these places, variant after variant. Slices of one tensor have one, and so
  // have tied units.
  using Places = std::vector<std::vector<std::size_t>>;

  explicit ModelTensors(const FullyShard& model) {
    add(model, &plan::UnitSpec::parameters, places_of_parameters);
    parameters = specs.size();
    add(model, &plan::UnitSpec::buffers, places_of_buffers);
  }
  std::vector<TensorSpec> specs;
  std::size_t parameters;
  Places places_of_parameters;
  Places places_of_buffers;

 private:
  template <typename Tensor>
  void add(const FullyShard& model, std::vector<Tensor> plan::UnitSpec::*of_unit, Places& mine) {
    std::map<std::string, std::size_t> places;
    for (const plan::Plan* plan : model.plans()) {
      for (const plan::UnitSpec& unit : plan->units) {
        std::vector<std::size_t> places_of_unit;
        for (std::size_t variant = 0; variant < plan->mesh.size(unit.apart); ++variant) {
          for (const Tensor& tensor : unit.*of_unit) {
            const std::string name = name_in_file(unit, tensor, variant);
            const auto [place, is_new] = places.emplace(name, specs.size());
            places_of_unit.push_back(place->second);
            if (is_new) specs.push_back({.name = name, .shape = shape_in_file(tensor), .dtype = DType::fp32});
          }
        }
        if (plan->options.role == model.plan().options.role) mine.push_back(std::move(places_of_unit));
      }
    }
  }
};

// Some of what this rank owns of one tensor: elements [first, first + values.size()).
struct WeightPiece {
  std::size_t tensor;  // in the order of ModelTensors
  std::size_t first;
  std::span<float> values;
};

enum class Visiting { reads, changes };

constexpr std::size_t portion_elements = std::size_t{4} << 20;

// Returns the pieces that a file of weights is about. With outer steps each replica has masters of its own, and the
// weights are those that all had in common last; loaded weights go to the replicas, too.
std::vector<ParameterPiece> pieces_of(FullyShard& model, const Unit& unit, Visiting visiting) {
  if (!model.plan().diverges()) return model.pieces(unit);
  std::vector<ParameterPiece> pieces = model.pieces(unit);
  if (!model.plan().trains(unit.index())) return pieces;
  if (visiting == Visiting::reads) {
    const plan::UnitLayout& layout = model.plan().layouts[unit.index()];
    std::erase_if(pieces, [&](const ParameterPiece& piece) {
      return layout.part(unit.index_of(*piece.parameter)) == plan::Part::trained;
    });
  }
  const std::vector<ParameterPiece> common = model.pieces(unit, "anchor");
  pieces.insert(pieces.end(), common.begin(), common.end());
  return pieces;
}

// In portions, between which ranks may meet. What is alike on several ranks is read of one, and changed on all.
void for_each_portion(FullyShard& model, const ModelTensors& tensors, Visiting visiting,
                      const std::function<void(const WeightPiece&)>& visit) {
  const plan::Plan& plan = model.plan();
  const std::size_t rank = plan.rank_of(static_cast<std::size_t>(model.world().rank()));
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    const Unit& unit = model.unit(u);
    if (visiting == Visiting::reads && plan.units[u].tied) continue;
    const std::size_t variant = plan.units[u].apart.empty() ? 0 : plan.variant_of(u, rank);
    HostPieces here(model.stream(), pieces_of(model, unit, visiting));
    for (const ParameterPiece& piece : here.pieces()) {
      const std::size_t index = unit.index_of(*piece.parameter);
      if (visiting == Visiting::reads && !plan.counts(u, index, rank)) continue;
      const std::size_t tensor = tensors.places_of_parameters[u][variant * unit.parameters().size() + index];
      const auto visit_run = [&](std::size_t own, std::size_t whole, std::size_t count) {
        for (std::size_t begin = 0; begin < count; begin += portion_elements) {
          const std::size_t portion = std::min(portion_elements, count - begin);
          visit({.tensor = tensor,
                 .first = whole + begin,
                 .values = piece.values.subspan(own - piece.first + begin, portion)});
        }
      };
      plan.units[u].parameters[index].map().for_each_run(variant, piece.first, piece.values.size(), visit_run);
    }
    if (visiting == Visiting::changes) {
      here.put_back();
      model.round_masters(unit);
    }
  }
}

// Calls `visit(tensor, buffer)` for the buffers that this rank has.
template <typename Visit>
void for_each_buffer(FullyShard& model, const ModelTensors& tensors, const Visit& visit) {
  const plan::Plan& plan = model.plan();
  const std::size_t rank = plan.rank_of(static_cast<std::size_t>(model.world().rank()));
  for (std::size_t u = 0; u < model.unit_count(); ++u) {
    const std::span<Buffer* const> buffers = model.unit(u).buffers();
    const std::size_t variant = plan.units[u].apart.empty() ? 0 : plan.variant_of(u, rank);
    for (std::size_t i = 0; i < buffers.size(); ++i)
      visit(tensors.places_of_buffers[u][variant * buffers.size() + i], *buffers[i]);
  }
}

// Every rank has values of its own: those of the first that has the unit in common with others are written.
bool writes_buffers(FullyShard& model, std::size_t unit) {
  const plan::Plan& plan = model.plan();
  const std::size_t rank = plan.rank_of(static_cast<std::size_t>(model.world().rank()));
  const AxisSet apart = plan.units[unit].apart;
  return rank == (apart.empty() ? 0 : plan.mesh.rank_at(plan.mesh.place_at(apart, plan.variant_of(unit, rank))));
}

void write_buffers(FullyShard& model, const ModelTensors& tensors, SafetensorsWriter& writer) {
  for_each_buffer(model, tensors, [&](std::size_t tensor, const Buffer& buffer) {
    if (!writes_buffers(model, buffer.unit()->index())) return;
    std::vector<float> values(buffer.elements());
    kernels::copy(model.stream(), values.data(), model.buffer(buffer).data(), Bytes(values.size() * sizeof(float)));
    model.stream().synchronize();
    writer.write(tensor, Bytes(0), std::as_bytes(std::span<const float>(values)));
  });
}

// Calls `read(Integer{})` with the type that the tensor's whole numbers or truth values have, as Python's modules have
// them among their buffers. False: it has neither.
template <typename Read>
bool with_integer_of(const StoredTensor& stored, const Read& read) {
  if (stored.dtype == "I64") return read(std::int64_t{}), true;
  if (stored.dtype == "I32") return read(std::int32_t{}), true;
  if (stored.dtype == "I16") return read(std::int16_t{}), true;
  if (stored.dtype == "I8") return read(std::int8_t{}), true;
  if (stored.dtype == "U8" || stored.dtype == "BOOL") return read(std::uint8_t{}), true;
  return false;
}

bool has_integers(const StoredTensor& stored) {
  return with_integer_of(stored, [](auto) {});
}

// All of a tensor, as fp32.
void read_numbers(const SafetensorsReader& reader, const StoredTensor& stored, std::span<float> to) {
  const auto read = [&]<typename Integer>(Integer) {
    std::vector<Integer> values(to.size());
    reader.read(stored, Bytes(0), std::as_writable_bytes(std::span(values)));
    std::transform(values.begin(), values.end(), to.begin(), [](Integer value) { return static_cast<float>(value); });
  };
  if (!with_integer_of(stored, read)) reader.read_floats(stored, 0, to);
}

// A file's tensors under the model's names: through the name map, and then through the file's aliases.
class NamedTensors {
 public:
  NamedTensors(const SafetensorsReader& file, const LoadWeightsOptions& options)
      : file_(file), names_(options.names), aliases_(checkpoint::find_aliases(file.metadata(), [&](const auto& name) {
          return file.find(name) != nullptr;
        })) {}

  const std::string& name_in_file(const std::string& name) const {
    const auto mapped = names_.find(name);
    return mapped == names_.end() ? name : mapped->second;
  }

  const StoredTensor* find(const std::string& name) const {
    const std::string& in_file = name_in_file(name);
    if (const StoredTensor* stored = file_.find(in_file)) return stored;
    const auto alias = aliases_.find(in_file);
    return alias == aliases_.end() ? nullptr : file_.find(alias->second);
  }

  // For an error: the model's name, and the file's where that is another.
  std::string shown(const std::string& name) const {
    const std::string& in_file = name_in_file(name);
    return in_file == name ? shown_name(name)
                           : fmt::format("{} (in the file {})", shown_name(name), shown_name(in_file));
  }

 private:
  const SafetensorsReader& file_;
  const std::map<std::string, std::string>& names_;
  const std::map<std::string, std::string> aliases_;
};

// Says what is wrong with one tensor; empty when nothing is.
std::string difference(const NamedTensors& named, const TensorSpec& tensor, bool is_buffer) {
  const StoredTensor* stored = named.find(tensor.name);
  const std::string shown = named.shown(tensor.name);
  if (stored == nullptr && is_buffer) return {};  // the model's own stays
  if (stored == nullptr) return fmt::format("tensor {} {} is missing", shown, to_string(tensor.shape));
  if (stored->shape != tensor.shape) {
    return fmt::format("tensor {} is {}, the model's is {}", shown, to_string(stored->shape), to_string(tensor.shape));
  }
  if (is_floating(*stored) || (is_buffer && has_integers(*stored))) return {};
  return fmt::format("tensor {} is {}, expected F32, BF16 or F16", shown, stored->dtype);
}

// Lists what is wrong with the file; empty when it fits the model.
std::string differences(const SafetensorsReader& file, const ModelTensors& expected,
                        const LoadWeightsOptions& options) {
  checkpoint::Differences list;
  const NamedTensors named(file, options);
  std::unordered_set<std::string_view> known;
  std::unordered_set<const StoredTensor*> used;
  for (std::size_t i = 0; i < expected.specs.size(); ++i) {
    const TensorSpec& tensor = expected.specs[i];
    known.insert(tensor.name);
    used.insert(named.find(tensor.name));
    const std::string wrong = difference(named, tensor, i >= expected.parameters);
    if (!wrong.empty()) list.add(wrong);
  }
  for (const StoredTensor& stored : file.tensors()) {
    if (!used.contains(&stored)) list.add(fmt::format("tensor {} is not in the model", shown_name(stored.name)));
  }
  for (const auto& [name, mine] : options.metadata) {
    const auto theirs = file.metadata().find(name);
    if (theirs == file.metadata().end() || theirs->second == mine) continue;
    list.add(fmt::format("its {} is {}, the model's is {}", shown_name(name), shown_name(theirs->second), mine));
  }
  for (const auto& [name, in_file] : options.names) {
    if (!known.contains(name)) {
      list.add(fmt::format("the names map {} to {}, and the model has no such tensor", shown_name(name),
                           shown_name(in_file)));
    }
  }
  return list.text();
}

// Tells apart what ranks load: each reads its own pieces, of a file that may be of its own host. Of a large file it
// looks at some places from its beginning to its end.
std::uint64_t identity_of(const std::filesystem::path& path, const LoadWeightsOptions& options) {
  constexpr std::uint64_t places = 256;
  const checkpoint::File file = checkpoint::File::open_to_read(path);
  const std::uint64_t size = file.size();
  std::uint64_t hash = fnv1a(fmt::format("{} bytes\n", size));
  for (const auto& [name, in_file] : options.names) hash = fnv1a(fmt::format("{}\n{}\n", name, in_file), hash);
  std::string piece;
  for (std::uint64_t place = 0; place < places; ++place) {
    const std::uint64_t begin = size / places * place;
    piece.resize(std::min<std::uint64_t>(size - begin, 4096));
    file.read(begin, std::as_writable_bytes(std::span(piece)));
    hash = fnv1a(piece, hash);
  }
  return hash;
}

}  // namespace

void dump_weights(FullyShard& model, const std::filesystem::path& path,
                  const std::map<std::string, std::string>& said) {
  World& world = model.world();
  std::map<std::string, std::string> metadata = said;
  metadata["writer"] = "tessera " + std::string(version);
  // Where headers differ in length, ranks would write over each other's tensors.
  std::uint64_t hash = fnv1a_basis;
  for (const auto& [name, text] : metadata) hash = fnv1a(fmt::format("{} {} {} ", name.size(), name, text), hash);
  world.require_equal(hash, "the metadata of dump_weights(), by its hash,");
  const ModelTensors tensors(model);
  SafetensorsWriter writer(path, tensors.specs, metadata);
  const bool creates = world.rank() == 0;
  checkpoint::run_together(world, "dump_weights: create", [&](const Pause&) {
    if (creates) writer.create();
  });
  checkpoint::run_together(world, "dump_weights: write", [&](const Pause& pause) {
    if (!creates) writer.open();
    for_each_portion(model, tensors, Visiting::reads, [&](const WeightPiece& portion) {
      writer.write(portion.tensor, Bytes(portion.first * sizeof(float)), std::as_bytes(portion.values));
      pause();
    });
    write_buffers(model, tensors, writer);
    checkpoint::run_apart(pause, [&] { writer.flush(); });
  });
  checkpoint::run_together(world, "dump_weights: finish", [&](const Pause& pause) {
    if (creates) checkpoint::run_apart(pause, [&] { writer.finish(); });
  });
}

void load_weights(FullyShard& model, const std::filesystem::path& path, const LoadWeightsOptions& options) {
  World& world = model.world();
  const ModelTensors tensors(model);
  std::optional<SafetensorsReader> reader;
  std::uint64_t identity = 0;
  checkpoint::run_together(world, "load_weights: open", [&](const Pause&) {
    reader.emplace(path);
    identity = identity_of(path, options);
    const std::string list = differences(*reader, tensors, options);
    if (!list.empty()) throw DataError(fmt::format("{}: does not fit the model: {}", path.string(), list));
  });
  world.require_equal(identity, "the file of load_weights() and its options, by the hash of either,");
  checkpoint::run_together(world, "load_weights: read", [&](const Pause& pause) {
    const NamedTensors named(*reader, options);
    for_each_portion(model, tensors, Visiting::changes, [&](const WeightPiece& portion) {
      reader->read_floats(*named.find(tensors.specs[portion.tensor].name), portion.first, portion.values);
      pause();
    });
    for_each_buffer(model, tensors, [&](std::size_t tensor, const Buffer& buffer) {
      const StoredTensor* const stored = named.find(tensors.specs[tensor].name);
      if (stored == nullptr) return;
      std::vector<float> values(buffer.elements());
      read_numbers(*reader, *stored, values);
      kernels::copy(model.stream(), model.buffer(buffer).data(), values.data(), Bytes(values.size() * sizeof(float)));
      model.stream().synchronize();
    });
  });
  model.shards_changed();
}

std::map<std::string, std::string> read_name_map(const std::filesystem::path& path) {
  constexpr Bytes limit{100'000'000};
  std::map<std::string, std::string> names;
  const auto form = checkpoint::JsonForm::texts(
      [&](const std::string& name, std::string_view in_file) { names.emplace(name, in_file); });
  checkpoint::parse_json(checkpoint::read_whole(path, limit), form, path.string());
  return names;
}

}  // namespace tessera
