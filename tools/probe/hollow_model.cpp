// Units without layers, and the windows of their program.
#include "probe/hollow_model.hpp"

#include <string>

#include "tessera/kernels/elementwise.hpp"
#include "tessera/optim/adamw.hpp"

namespace tessera::probe {
namespace {

// Specs have full names; units are given those within.
std::string name_within(const std::string& unit, const std::string& full) {
  return full.rfind(unit + ".", 0) == 0 ? full.substr(unit.size() + 1) : full;
}

template <typename T>
void write_zero(Window& window, const Parameter& parameter) {
  const std::span<T> gradient = window.gradient<T>(parameter);
  kernels::fill_zero(window.stream(), gradient.data(), Bytes(gradient.size_bytes()));
}

}  // namespace

HollowModel::HollowModel(World& world, std::span<const plan::UnitSpec> units, const FullyShardOptions& options)
    : program_(options.program.value_or(plan::Program::chain(units.size()))), model_(world, options) {
  for (const plan::UnitSpec& spec : units) add(spec);
  model_.finalize(AdamW{});
}

void HollowModel::add(const plan::UnitSpec& spec) {
  std::vector<NamedParameter> parameters;
  for (const plan::ParameterSpec& each : spec.parameters) {
    const ParameterOptions options{.optional = each.optional, .frozen = each.frozen};
    parameters_.push_back(std::make_unique<Parameter>(each.shape, Initial::zeros(), options));
    parameters.push_back({name_within(spec.name, each.name), parameters_.back().get()});
  }
  std::vector<NamedBuffer> buffers;
  for (const plan::BufferSpec& each : spec.buffers) {
    buffers_.push_back(std::make_unique<Buffer>(each.shape));
    buffers.push_back({name_within(spec.name, each.name), buffers_.back().get()});
  }
  std::vector<NamedCollective> collectives;
  for (const plan::CollectiveSpec& each : spec.collectives) {
    const CollectiveOptions options{.kind = each.kind,
                                    .type = each.type,
                                    .forward = each.forward,
                                    .backward = each.backward,
                                    .backward_input = each.backward_input,
                                    .evaluate = each.evaluate,
                                    .axes = each.axes,
                                    .overlaps = each.overlaps};
    collectives_.push_back(std::make_unique<Collective>(each.elements, options));
    collectives.push_back({name_within(spec.name, each.name), collectives_.back().get()});
  }
  const UnitOptions options{.name = spec.name, .precision = spec.precision};
  units_.push_back(&model_.add_unit(options, parameters, buffers, collectives));
}

void HollowModel::step() {
  for (std::size_t micro = 0; micro < model_.plan().micro_batches(0); ++micro) {
    run(program_.micro_batch);
  }
  model_.update();
}

void HollowModel::evaluate() { run(program_.evaluation); }

void HollowModel::run(const std::vector<plan::WindowUse>& windows) {
  const std::vector<bool> closing = plan::closes(windows);
  std::vector<Window> open;
  for (std::size_t k = 0; k < windows.size(); ++k) {
    Unit& unit = *units_[windows[k].unit];
    if (!windows[k].resumes) {
      open.push_back(model_.open(unit, windows[k].kind));
      if (windows[k].kind == plan::WindowKind::backward) write_gradients(open.back(), unit);
      collect_zeros(open.back(), unit);
    }
    if (!closing[k]) continue;
    open.back().close();
    open.pop_back();
  }
}

void HollowModel::collect_zeros(Window& window, const Unit& unit) {
  const auto collect = [&]<typename T>(const Collective& collective, T) {
    const std::span<T> mine = window.contribution<T>(collective);
    kernels::fill_zero(window.stream(), mine.data(), Bytes(mine.size_bytes()));
    window.collect<T>(collective);
  };
  for (const std::size_t index : plan::collectives_in(model_.plan().units[unit.index()], window.kind())) {
    const Collective& collective = *unit.collectives()[index];
    const std::optional<DType> type = collective.options().type;
    if (!type)
      collect(collective, double{});
    else if (*type == DType::fp32)
      collect(collective, float{});
    else if (*type == DType::bf16)
      collect(collective, bf16{});
    else
      collect(collective, fp16{});
  }
}

void HollowModel::write_gradients(Window& window, const Unit& unit) {
  const DType type = model_.plan().precision(unit.index()).gradient;
  for (const Parameter* parameter : unit.parameters()) {
    if (!window.trains(*parameter)) continue;
    switch (type) {
      case DType::fp32: write_zero<float>(window, *parameter); break;
      case DType::bf16: write_zero<bf16>(window, *parameter); break;
      case DType::fp16: write_zero<fp16>(window, *parameter); break;
      case DType::u8:
      case DType::int8: break;
    }
  }
}

}  // namespace tessera::probe
