// Torch's own generators begin at the seed, too, for what is not drawn on this thread's CPU.
#include "tessera/torch/make_module.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "src/generator_mode.hpp"
#include "src/torch_generators.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

class SeededGenerator::Scope final {
 public:
  explicit Scope(std::uint64_t seed) : mode_(at::detail::createCPUGenerator(seed)) {
    const auto alone = generators_alone();
    at::manual_seed(seed);
  }
  // Torch's own goes on from where this one has come to.
  ~Scope() {
    const auto alone = generators_alone();
    at::Generator torchs = at::globalContext().defaultGenerator(at::kCPU);
    const std::lock_guard<std::mutex> lock(torchs.mutex());
    torchs.set_state(mode_.generator().get_state());
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  GeneratorMode mode_;
};

SeededGenerator::SeededGenerator(std::uint64_t seed) {
  if (OperatorMode::here() != nullptr) {
    throw UsageError("a SeededGenerator (make_module()) was made inside of another one, or of a Deferred");
  }
  scope_ = std::make_unique<Scope>(seed);
}
SeededGenerator::~SeededGenerator() = default;

}  // namespace tessera::torch
