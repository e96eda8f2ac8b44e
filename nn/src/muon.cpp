// Muon: elementwise kernels of the runtime around products of nn.
#include "tessera/nn/muon.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "src/exported.hpp"
#include "src/newton_schulz.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/kernels/muon.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/shard/whole_tensors.hpp"

namespace tessera::nn {

namespace {

void require_setting(bool holds, const char* setting, float value, const char* range) {
  if (!holds) throw UsageError(fmt::format("Muon: {} must be {}, but is {}", setting, range, value));
}

void check_settings(const Muon& settings) {
  const auto not_negative = [](const char* setting, float value) {
    require_setting(std::isfinite(value) && value >= 0.0f, setting, value, "at least 0 and finite");
  };
  const auto positive = [](const char* setting, float value) {
    require_setting(std::isfinite(value) && value > 0.0f, setting, value, "above 0 and finite");
  };
  const auto fraction = [](const char* setting, float value) {
    require_setting(value >= 0.0f && value < 1.0f, setting, value, "at least 0 and below 1");
  };
  not_negative("learning_rate", settings.learning_rate);
  fraction("momentum", settings.momentum);
  not_negative("weight_decay", settings.weight_decay);
  positive("epsilon", settings.epsilon);
  not_negative("clip_norm", settings.clip_norm);
  not_negative("adamw_learning_rate_scale", settings.adamw_learning_rate_scale);
  fraction("beta1", settings.beta1);
  fraction("beta2", settings.beta2);
  positive("adamw_epsilon", settings.adamw_epsilon);
  for (const ParameterGroup& group : settings.groups) {
    if (group.patterns.empty()) throw UsageError("Muon: a group without patterns matches no parameter");
    not_negative("learning_rate_scale of a group", group.learning_rate_scale);
    if (group.weight_decay) not_negative("weight_decay of a group", *group.weight_decay);
    if (group.beta1) fraction("beta1 of a group", *group.beta1);
    if (group.beta2) fraction("beta2 of a group", *group.beta2);
    if (group.epsilon) positive("epsilon of a group", *group.epsilon);
  }
}

class MuonOptimizer final : public Optimizer, WholeTensors {
 public:
  explicit MuonOptimizer(Muon settings) : settings_(std::move(settings)) { check_settings(settings_); }

  std::string_view name() const final { return "muon"; }
  std::vector<std::string> states() const final { return {"momentum", "v"}; }
  std::vector<plan::StateSpec> state_specs() const final {
    plan::StateSpec second("v");
    second.elementwise = true;
    return {"momentum", second};
  }
  float learning_rate() const final { return settings_.learning_rate; }
  float weight_decay() const final { return settings_.weight_decay; }
  std::vector<ParameterGroup> groups() const final { return settings_.groups; }
  std::vector<OptimizerSetting> settings() const final {
    return {{"momentum", fmt::format("{}", settings_.momentum)},
            {"nesterov", fmt::format("{}", settings_.nesterov)},
            {"epsilon", fmt::format("{}", settings_.epsilon)},
            {"scale", settings_.scale == MuonScale::original ? "original" : "rms of adamw"},
            {"elementwise", fmt::format("{}", fmt::join(settings_.elementwise, " "))},
            {"adamw learning rate scale", fmt::format("{}", settings_.adamw_learning_rate_scale)},
            {"beta1", fmt::format("{}", settings_.beta1)},
            {"beta2", fmt::format("{}", settings_.beta2)},
            {"adamw epsilon", fmt::format("{}", settings_.adamw_epsilon)}};
  }
  kernels::StepSettings step_settings() const final {
    return {.clip_norm = settings_.clip_norm, .decay = {settings_.beta1, settings_.beta2}};
  }
  const WholeTensors* whole_tensors() const final { return this; }

  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const final {
    const float beta1 = group.beta1.value_or(settings_.beta1), beta2 = group.beta2.value_or(settings_.beta2);
    kernels::adamw(stream,
                   {.master = spans.master,
                    .first_moment = spans.states[0],
                    .second_moment = spans.states[1],
                    .gradient = spans.gradient,
                    .count = spans.count},
                   {.learning_rate = group.learning_rate * settings_.adamw_learning_rate_scale,
                    .beta1 = beta1,
                    .beta2 = beta2,
                    .epsilon = group.epsilon.value_or(settings_.adamw_epsilon),
                    .weight_decay = group.weight_decay,
                    .own_decays = group.own_decays || beta1 != settings_.beta1 || beta2 != settings_.beta2,
                    .begun = group.begun},
                   scalars);
  }

  DType type() const final { return DType::bf16; }
  // The default patterns name layers of many models, so they need not match.
  std::vector<std::string> patterns() const final {
    std::vector<std::string> given = settings_.elementwise;
    const std::vector<std::string> usual = Muon{}.elementwise;
    std::erase_if(given, [&](const std::string& each) { return std::count(usual.begin(), usual.end(), each) > 0; });
    return given;
  }
  std::optional<plan::WholeSpec> wants(std::string_view name, const Shape& shape, DeviceKind device) const final {
    if (shape.size() != 2) return std::nullopt;
    const auto is_named = [&](const std::string& pattern) {
      return ::fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0;
    };
    if (std::any_of(settings_.elementwise.begin(), settings_.elementwise.end(), is_named)) return std::nullopt;
    return plan::WholeSpec{.workspace = newton_schulz_workspace(shape[0], shape[1], device),
                           .cost = newton_schulz_flops(shape[0], shape[1])};
  }

  void direct(Stream& stream, const OptimizerSpans& spans, std::span<const kernels::Target> directions,
              const OptimizerGroup&, const kernels::StepScalars* scalars) const final {
    kernels::muon_direction(stream,
                            {.momentum = spans.states[0],
                             .gradient = static_cast<const float*>(spans.gradient.data),
                             .direction = static_cast<bf16*>(directions[0].data),
                             .count = spans.count},
                            {settings_.momentum, settings_.nesterov}, scalars);
  }
  void transform(Stream& stream, std::span<const WholeTensor> tensors) const final {
    const std::size_t rows = tensors[0].shape[0], columns = tensors[0].shape[1];
    // One thread does one after the other, which then stays in its caches.
    const bool is_alone = stream.device().kind() == DeviceKind::cpu && parallel::threads() == 1;
    const std::size_t most = is_alone ? 1 : newton_schulz_batch(rows, columns, stream.device().kind());
    for (std::size_t first = 0; first < tensors.size(); first += most) {
      const MatrixBatch x{static_cast<bf16*>(tensors[first].planes[0].data), rows, columns,
                          std::min(most, tensors.size() - first)};
      orthogonalise(stream, x, settings_.epsilon, tensors[0].workspace);
    }
  }
  void apply(Stream& stream, const AppliedSpans& spans, const OptimizerGroup& group,
             const kernels::StepScalars* scalars) const final {
    const auto rows = static_cast<float>(spans.shape[0]), columns = static_cast<float>(spans.shape[1]);
    const float scale = settings_.scale == MuonScale::original ? std::sqrt(std::max(1.0f, rows / columns))
                                                               : 0.2f * std::sqrt(std::max(rows, columns));
    kernels::muon_apply(stream, spans.master, static_cast<const bf16*>(spans.direction.data), spans.count,
                        {group.learning_rate, scale, group.weight_decay}, scalars);
  }

 private:
  Muon settings_;
};

}  // namespace

TESSERA_EXPORTED Muon::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }
TESSERA_EXPORTED Muon::operator std::unique_ptr<Optimizer>() const { return std::make_unique<MuonOptimizer>(*this); }

}  // namespace tessera::nn
