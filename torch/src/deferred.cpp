// A dispatch key that torch leaves to others, above all others, and for this thread alone: every operator comes to its
// fallback first.
#include "tessera/torch/deferred.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "src/recording.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

constexpr c10::DispatchKey deferred_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local Recording* recording_here = nullptr;

void write_down(const c10::OperatorHandle& operation, c10::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard itself(deferred_key);
  // Torch gives its threads the keys of whoever has work for them.
  if (recording_here == nullptr) return operation.callBoxed(stack);
  recording_here->run(operation, *stack);
}

}  // namespace

class Deferred::Scope {
 public:
  explicit Scope(std::uint64_t seed) : recording_(std::make_shared<Recording>(seed)) {
    if (recording_here != nullptr) throw UsageError("a Deferred was made inside of another one");
    recording_here = recording_.get();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { recording_here = nullptr; }

 private:
  std::shared_ptr<Recording> recording_;
  c10::impl::IncludeDispatchKeyGuard included_{deferred_key};
};

Deferred::Deferred(std::uint64_t seed) : scope_(std::make_unique<Scope>(seed)) {}
Deferred::~Deferred() = default;

}  // namespace tessera::torch

// At global scope, because the macro says torch:: where it stands.
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::torch::write_down>());
}
