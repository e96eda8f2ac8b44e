// A pass of the user's that runs once before there is a plan: windows write down their order and show scratch memory,
// in which parameters are zero and gradients and buffers go nowhere. It has room for the largest unit, as often as
// windows are open inside each other, and ends before the arena is taken.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shard/window_host.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/plan/strategy.hpp"

namespace tessera {

class RecordedPass final : public WindowHost {
 public:
  struct Subject {
    World& world;
    std::span<const std::unique_ptr<Unit>> units;
    const std::map<const Module*, Unit*>& modules;  // that were added as units
    Precision precision;
    Bytes activations;
    const std::string& program;
    const std::optional<std::vector<const Unit*>>& trains;  // none: every unit
  };
  explicit RecordedPass(const Subject& subject);
  ~RecordedPass() override;

  // The windows that `pass` opens. Throws UsageError where it opens none, or leaves one open.
  std::vector<plan::WindowUse> run(const std::function<void()>& pass);

  // The model uses these while it records.
  Stream& compute() { return stream_; }
  const float* scale() const { return loss_scale_; }
  std::span<std::byte> activation_memory();

  // ---- WindowHost ----
  Window open(const plan::WindowUse& use) override;
  WindowView* open_window(std::size_t serial) override;
  const Unit& unit(std::size_t index) const override { return *subject_.units[index]; }
  void close(std::size_t serial) override;
  Contributions exchange(std::size_t serial, const Exchange& exchange) override;
  void abandon(std::string_view what) noexcept override;

 private:
  // Where a unit's tensors stand in the scratch memory.
  struct Places {
    std::vector<Bytes> parameters;
    std::vector<Bytes> gradients;
    std::vector<Bytes> buffers;
    std::vector<Bytes> exchanges;  // what each rank brings
    Bytes end;
  };

  // The handle of an open window sees this; there is one for each depth.
  class Scratch final : public WindowView {
   public:
    Scratch(RecordedPass& pass, Bytes size);

    void open(const plan::WindowUse& use, std::size_t serial);
    void close();
    const plan::WindowUse& use() const { return use_; }
    bool is(std::size_t serial) const { return serial_ == serial; }
    std::string describe() const;

    const Unit& unit() const override { return *pass_.subject_.units[use_.unit]; }
    plan::WindowKind kind() const override { return use_.kind; }
    bool trains(const Parameter& parameter) const override;
    View parameter(const Parameter& parameter, DType type) override;
    View gradient(const Parameter& parameter, DType type, GradientMode mode) override;
    std::span<float> values(const Buffer& buffer) override;
    std::span<double> contribution(const Exchange& exchange) override;
    const float* loss_scale() override { return pass_.loss_scale_; }
    Stream& stream() override { return pass_.stream_; }
    void join(Stream& other) override;
    void keep(std::shared_ptr<void> object) override { pass_.kept_.push_back(std::move(object)); }

   private:
    const Places& places() const { return pass_.places_[use_.unit]; }
    std::byte* at(Bytes place) { return memory_.data() + place.count(); }

    RecordedPass& pass_;
    Arena memory_;
    std::vector<Stream*> joined_;
    plan::WindowUse use_{};
    std::size_t serial_ = 0;
  };

  Places places_of(const Unit& unit) const;
  const Precision& precision_of(const Unit& unit) const;

  Subject subject_;
  std::vector<Places> places_;  // by unit
  Bytes largest_;               // of them
  Arena memory_;                // of the loss scale and the activations
  Stream stream_;
  std::shared_ptr<WindowLink> link_;
  const float* loss_scale_;
  std::vector<plan::WindowUse> uses_;
  std::vector<std::shared_ptr<void>> kept_;        // until the pass has ended
  std::vector<std::unique_ptr<Scratch>> windows_;  // by depth; the first `depth_` are open
  std::size_t depth_ = 0;
  std::size_t serial_ = 0;
};

}  // namespace tessera
