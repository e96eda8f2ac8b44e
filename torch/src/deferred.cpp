// A constructor's operators are written down in place of being computed.
#include "tessera/torch/deferred.hpp"

#include "src/operator_mode.hpp"
#include "src/recording.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

class Deferred::Scope final : public OperatorMode {
 public:
  explicit Scope(std::uint64_t seed) : recording_(std::make_shared<Recording>(seed)) {}

  void call(const c10::OperatorHandle& operation, c10::DispatchKeySet /*behind*/, c10::Stack& stack) override {
    const c10::impl::ExcludeDispatchKeyGuard itself(key);
    recording_->run(operation, stack);
  }

 private:
  std::shared_ptr<Recording> recording_;
};

Deferred::Deferred(std::uint64_t seed) {
  if (OperatorMode::here() != nullptr) {
    throw UsageError("a Deferred was made inside of another one, or of a SeededGenerator");
  }
  scope_ = std::make_unique<Scope>(seed);
}
Deferred::~Deferred() = default;

}  // namespace tessera::torch
