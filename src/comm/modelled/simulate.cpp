// The modelled backend, one rank of an imagined job on the CPU, and simulate(): the body on the calling thread, and one
// way out for whatever ends the job.
#include "tessera/comm/simulate.hpp"

#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/launch.hpp"
#include "comm/launch_options.hpp"
#include "comm/modelled/modelled_communicator.hpp"
#include "comm/world_backend.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"

namespace tessera {
namespace {

constexpr int most_ranks = 1 << 20;

// As for one rank that is really launched.
LaunchOptions real_rank(const SimulateOptions& options) {
  return {.ranks = 1, .timeout = options.timeout, .threads = options.threads};
}

void validate(const SimulateOptions& options) {
  if (options.ranks < 1 || options.ranks > most_ranks) {
    throw UsageError(fmt::format("an imagined job has 1 to {} ranks, not {}", most_ranks, options.ranks));
  }
  if (options.rank < 0 || options.rank >= options.ranks) {
    throw UsageError(
        fmt::format("rank {} is none of an imagined job's {} ranks, which count from 0", options.rank, options.ranks));
  }
  const CollectiveTime& time = options.collectives;
  if (time.latency.count() < 0 || !std::isfinite(time.bytes_per_second) || time.bytes_per_second < 0) {
    throw UsageError(fmt::format("collectives cannot take {} ns at {} bytes per second", time.latency.count(),
                                 time.bytes_per_second));
  }
  comm::validate(real_rank(options));
}

class ModelledBackend final : public World::Backend {
 public:
  ModelledBackend(comm::ModelledJob& job, const Facts& facts, comm::RankLog& log)
      : Backend(facts, job, log), job_(job) {}

  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    return make(comm::communicator_name(name, use.group), use.group, comm::Peers::zero);
  }
  std::unique_ptr<Communicator> make_host_communicator(std::string name) final {
    return make(name, std::nullopt, comm::Peers::same);
  }

 private:
  std::unique_ptr<Communicator> make(const std::string& name, const std::optional<Group>& group, comm::Peers peers) {
    job_.throw_if_failed();
    return comm::make_modelled_communicator(job_, name, comm::members_of(group, facts().rank, facts().size), peers);
  }

  comm::ModelledJob& job_;
};

}  // namespace

void simulate(const SimulateOptions& options, const std::function<void(World&)>& body) {
  validate(options);
  comm::ModelledJob job(options);
  comm::RankLog log(std::nullopt, options.rank);  // an imagined job keeps none
  const std::exception_ptr thrown = comm::run_rank(job, log, body, [&] {
    const World::Backend::Facts facts{.name = "modelled",
                                      .rank = options.rank,
                                      .size = options.ranks,
                                      .device = Device::cpu(),
                                      .threads = comm::threads_per_rank(real_rank(options)),
                                      .timeout = options.timeout};
    return std::make_unique<ModelledBackend>(job, facts, log);
  });
  const comm::JobFailure* failure = job.failure();
  if (failure == nullptr) return;
  const std::exception_ptr cause = comm::first_cause(*failure, thrown);
  if (options.ranks == 1) std::rethrow_exception(cause);
  std::rethrow_exception(comm::exception_from_rank(options.rank, cause));
}

}  // namespace tessera
