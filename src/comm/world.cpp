// A World is its backend plus the conveniences that all backends share.
#include "tessera/comm/world.hpp"

#include <utility>

#include "comm/host_collectives.hpp"
#include "comm/world_backend.hpp"

namespace tessera {

World::World(std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)), host_(std::make_unique<HostCollectives>(*backend_)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&& other) noexcept {
  host_ = std::move(other.host_);  // before the backend that it runs on
  backend_ = std::move(other.backend_);
  return *this;
}
World::~World() = default;

int World::rank() const { return backend_->rank(); }
int World::size() const { return backend_->size(); }
Device World::device() const { return backend_->device(); }
int World::threads() const { return backend_->threads(); }
std::chrono::milliseconds World::timeout() const { return backend_->timeout(); }
std::string_view World::backend_name() const { return backend_->name(); }

Arena World::make_arena(Bytes size) { return backend_->make_arena(size); }

std::unique_ptr<Communicator> World::make_communicator(std::string name, const CommunicatorUse& use) {
  return backend_->make_communicator(std::move(name), use);
}
CollectiveStaging World::staging() const { return backend_->staging(); }

void World::barrier(std::string_view label) { host_->barrier(label); }
float World::average(float value, std::string_view label) { return host_->average(value, label); }
double World::sum(double value, std::string_view label) { return host_->sum(value, label); }
std::vector<std::byte> World::gather(std::span<const std::byte> mine, std::string_view label) {
  return host_->gather(mine, label);
}
void World::require_equal(std::uint64_t value, std::string_view what) { host_->require_equal(value, what); }

void World::warn(std::string_view text) const noexcept { backend_->warn(text); }

void World::abort(std::string_view cause) noexcept { backend_->abort(cause); }
bool World::aborted() const noexcept { return backend_->failure() != nullptr; }
void World::throw_if_aborted() const {
  if (const comm::JobFailure* failure = backend_->failure()) comm::throw_aborted(*failure);
}

}  // namespace tessera
