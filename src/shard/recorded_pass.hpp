// A pass of the user's that runs once before there is a plan: windows write down their order and show scratch memory,
// in which parameters are zero and gradients and buffers go nowhere. It has room for the largest unit, and ends before
// the arena is taken.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shard/window_host.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/plan/strategy.hpp"

namespace tessera {

class RecordedPass final : public WindowHost, private WindowView {
 public:
  struct Subject {
    World& world;
    std::span<const std::unique_ptr<Unit>> units;
    Precision precision;
    Bytes activations;
    const std::string& program;
    const std::optional<std::vector<const Unit*>>& trains;  // none: every unit
  };
  explicit RecordedPass(const Subject& subject);
  ~RecordedPass() override;

  // The windows that `pass` opens. Throws UsageError where it opens none, or leaves one open.
  std::vector<plan::WindowUse> run(const std::function<void()>& pass);

  // What the model does while it records.
  Window open(const plan::WindowUse& use);
  Stream& compute() { return stream_; }
  const float* scale() const { return loss_scale_; }
  std::span<std::byte> activation_memory();

  // ---- WindowHost ----
  WindowView* open_window(std::size_t serial) override { return current_ && serial == serial_ ? this : nullptr; }
  void close() override;
  void abandon(std::string_view what) noexcept override;

 private:
  // Where a unit's tensors stand in the scratch memory.
  struct Places {
    std::vector<Bytes> parameters;
    std::vector<Bytes> gradients;
    std::vector<Bytes> buffers;
    Bytes end;
  };

  Places places_of(const Unit& unit) const;
  const Precision& precision_of(const Unit& unit) const;
  std::byte* tensor_at(Bytes place);
  std::string describe() const;

  // ---- WindowView ----
  const Unit& unit() const override { return *subject_.units[current_->unit]; }
  plan::WindowKind kind() const override { return current_->kind; }
  bool trains(const Parameter& parameter) const override;
  View parameter(const Parameter& parameter, DType type) override;
  View gradient(const Parameter& parameter, DType type, GradientMode mode) override;
  std::span<float> values(const Buffer& buffer) override;
  const float* loss_scale() override { return loss_scale_; }
  Stream& stream() override { return stream_; }
  void join(Stream& other) override;

  Subject subject_;
  std::vector<Places> places_;  // by unit
  Arena scratch_;
  Stream stream_;
  std::shared_ptr<WindowLink> link_;
  const float* loss_scale_;
  std::vector<plan::WindowUse> uses_;
  std::vector<Stream*> joined_;  // by the open window
  std::optional<plan::WindowUse> current_;
  std::size_t serial_ = 0;
};

}  // namespace tessera
