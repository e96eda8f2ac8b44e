// The modelled backend: one rank of an imagined job, on the CPU.
#pragma once

#include <memory>

#include "comm/modelled/modelled_communicator.hpp"
#include "comm/rank_log.hpp"
#include "comm/world_backend.hpp"

namespace tessera::comm {

class ModelledBackend final : public World::Backend {
 public:
  // The job outlives its World, the communicators and all streams that these run on.
  ModelledBackend(ModelledJob& job, int threads) : job_(job), threads_(threads) {}

  int rank() const final { return job_.options().rank; }
  int size() const final { return job_.options().ranks; }
  Device device() const final { return Device::cpu(); }
  int threads() const final { return threads_; }
  std::chrono::milliseconds timeout() const final { return job_.options().timeout; }
  std::string_view name() const final { return "modelled"; }

  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse&) final {
    return make(std::move(name), Peers::zero);
  }
  std::unique_ptr<Communicator> make_host_communicator(std::string name) final {
    return make(std::move(name), Peers::same);
  }

  void warn(std::string_view text) noexcept final { comm::warn(log_, rank(), text); }
  void abort(std::string_view cause) noexcept final { job_.abort(cause, nullptr); }
  const JobFailure* failure() const noexcept final { return job_.failure(); }

 private:
  std::unique_ptr<Communicator> make(std::string name, Peers peers) {
    job_.throw_if_failed();
    return std::make_unique<ModelledCommunicator>(job_, std::move(name), peers);
  }

  ModelledJob& job_;
  int threads_;
  RankLog log_{std::nullopt, 0};  // an imagined job keeps none
};

}  // namespace tessera::comm
