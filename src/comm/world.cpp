// A World is its backend plus the conveniences that all backends share. Those gather values from all ranks, and every
// rank computes the same result from them in rank order.
#include "tessera/comm/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/world_backend.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"

namespace tessera {
namespace {

// Starts from the first value, not from zero: one rank's sum is its own value to the bit, also -0.
template <typename Value>
Value sum_in_rank_order(const std::vector<Value>& values) {
  return std::accumulate(values.begin() + 1, values.end(), values.front());
}

// A mesh that was not made by this World may be of other ranks.
void check_view(const Group& group, int rank, int size) {
  const int ranks = group.ranks_of_job();
  const int owner = group.ranks()[static_cast<std::size_t>(group.place())];
  if (ranks == size && owner == rank) return;
  throw UsageError(fmt::format("rank {} of {} has the group {} as rank {} of {} sees it: make meshes by World::mesh()",
                               rank, size, group.text(), owner, ranks));
}

}  // namespace

// ---- the conveniences ----

// Gathers of much host memory, over the rank's device: a control channel would send every byte through rank 0. A block
// of the device is held while one runs; the communicator stays. Where ranks share a device, taking memory and giving it
// back may wait for a peer's collective that waits for this rank, so all `meet` between that and the collectives.
class OverDevice {
 public:
  // Collective.
  explicit OverDevice(World::Backend& backend)
      : communicator_(backend.make_communicator("control, over devices", {})),
        stream_(backend.facts().device, {.name = "control, over devices"}) {}

  template <typename Meet>
  void all_gather(std::span<std::byte> all, std::string_view label, const Meet& meet) {
    const auto ranks = static_cast<std::size_t>(communicator_->size());
    const std::size_t part = std::min(all.size() / ranks, std::max(least_part, block_bytes / ranks));
    {
      Arena block(stream_.device(), Bytes(part * ranks));
      meet();
      gather_by(block, part, all, label);
    }
    meet();
  }

 private:
  void gather_by(Arena& block, std::size_t part, std::span<std::byte> all, std::string_view label) {
    const auto ranks = static_cast<std::size_t>(communicator_->size());
    const auto own = static_cast<std::size_t>(communicator_->rank());
    const std::size_t whole = all.size() / ranks;
    for (std::size_t done = 0; done < whole; done += part) {
      const std::size_t count = std::min(part, whole - done);
      const auto place = [&](std::size_t rank) { return block.data() + rank * count; };
      kernels::copy(stream_, place(own), all.data() + own * whole + done, Bytes(count));
      communicator_->all_gather(stream_, {.data = block.data(), .shard = Bytes(count), .label = label});
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (rank != own) kernels::copy(stream_, all.data() + rank * whole + done, place(rank), Bytes(count));
      }
      stream_.synchronize();
    }
  }

  static constexpr std::size_t block_bytes = std::size_t{16} << 20;
  static constexpr std::size_t least_part = std::size_t{64} << 10;

  std::unique_ptr<Communicator> communicator_;
  Stream stream_;
};

// Small collectives over a communicator and a stream of their own, so that they never queue behind the training's.
class World::HostCollectives {
 public:
  // Collective: makes the communicator "control".
  explicit HostCollectives(World::Backend& backend)
      : backend_(backend),
        communicator_(backend.make_host_communicator("control")),
        stream_(backend.host_device(), options(communicator_->size())) {}

  void barrier(std::string_view label) {
    communicator_->barrier(stream_, label);
    stream_.synchronize();
  }

  std::vector<std::byte> gather(std::span<const std::byte> mine, std::string_view label) {
    std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(communicator_->size()));
    const auto offset = static_cast<std::ptrdiff_t>(mine.size()) * communicator_->rank();
    std::copy(mine.begin(), mine.end(), all.begin() + offset);
    all_gather(all, label);
    return all;
  }

  void all_gather(std::span<std::byte> all, std::string_view label) {
    const std::size_t part = all.size() / static_cast<std::size_t>(communicator_->size());
    if ((part >= least_over_device || all.size() >= least_of_all) && backend_.gathers_over_device()) {
      if (!over_device_) over_device_.emplace(backend_);
      return over_device_->all_gather(all, label, [&] { barrier(label); });
    }
    communicator_->all_gather(stream_, {.data = all.data(), .shard = Bytes(part), .label = label});
    stream_.synchronize();
  }

  template <typename Value>
  std::vector<Value> gather_values(Value mine, std::string_view label) {
    return comm::values_of<Value>(gather(std::as_bytes(std::span(&mine, 1)), label));
  }

 private:
  // From so many bytes of a rank, or of all, on a gather goes over the device, where that is faster.
  static constexpr std::size_t least_over_device = std::size_t{64} << 10;
  static constexpr std::size_t least_of_all = std::size_t{1} << 20;

  // A rank that is alone wakes no thread for what it says to itself.
  static StreamOptions options(int ranks) {
    StreamOptions result{.name = "control", .queue_capacity = 1};
    if (ranks > 1) return result;
    result.mode = StreamMode::immediate;
    result.meets_peers = true;
    return result;
  }

  World::Backend& backend_;
  std::unique_ptr<Communicator> communicator_;
  Stream stream_;
  std::optional<OverDevice> over_device_;  // once it is needed
};

// ---- the World ----

World::World(std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)), host_(std::make_unique<HostCollectives>(*backend_)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&& other) noexcept {
  call_ends();
  ends_ = std::exchange(other.ends_, {});
  host_ = std::move(other.host_);  // before the backend that it runs on
  backend_ = std::move(other.backend_);
  return *this;
}
World::~World() { call_ends(); }

std::shared_ptr<const void> World::before_end(std::function<void()> end) {
  std::erase_if(ends_, [](const auto& known) { return known.expired(); });
  auto kept = std::make_shared<const std::function<void()>>(std::move(end));
  ends_.push_back(kept);
  return kept;
}

void World::call_ends() noexcept {
  for (const auto& known : std::exchange(ends_, {})) {
    if (const auto end = known.lock()) (*end)();
  }
}

int World::rank() const { return backend_->job().rank(); }
int World::size() const { return backend_->job().size(); }
Device World::device() const { return backend_->facts().device; }
int World::threads() const { return backend_->facts().threads; }
std::chrono::milliseconds World::timeout() const { return backend_->job().timeout(); }
std::string_view World::backend_name() const { return backend_->facts().name; }

Mesh World::mesh(std::vector<MeshAxis> axes) const {
  Mesh mesh(std::move(axes), size(), rank());
  if (rank() != 0) return mesh;
  const std::string text = comm::needless_crossing(mesh, backend_->facts().place);
  if (!text.empty() && backend_->is_new_warning(text)) warn(text);
  return mesh;
}

Arena World::make_arena(Bytes size) { return backend_->make_arena(size); }

std::unique_ptr<Communicator> World::make_communicator(std::string name, const CommunicatorUse& use) {
  if (use.group) check_view(*use.group, rank(), size());
  return backend_->make_communicator(std::move(name), use);
}
CollectiveStaging World::staging() const { return backend_->staging(); }

void World::barrier(std::string_view label) { host_->barrier(label); }
std::vector<std::byte> World::gather(std::span<const std::byte> mine, std::string_view label) {
  return host_->gather(mine, label);
}

void World::all_gather(std::span<std::byte> all, std::string_view label) { host_->all_gather(all, label); }

float World::average(float value, std::string_view label) {
  return sum_in_rank_order(host_->gather_values(value, label)) / static_cast<float>(size());
}

double World::sum(double value, std::string_view label) {
  return sum_in_rank_order(host_->gather_values(value, label));
}

double World::mean(double sum, double weight, std::string_view label) {
  struct Part {
    double sum;
    double weight;
  };
  if (!(std::isfinite(weight) && weight >= 0.0)) {
    throw UsageError(fmt::format("{}: a mean with weight {}: a weight is finite and at least 0", label, weight));
  }
  Part all{0.0, 0.0};
  for (const Part& part : host_->gather_values(Part{sum, weight}, label)) {
    all.sum += part.sum;
    all.weight += part.weight;
  }
  if (all.weight > 0.0) return all.sum / all.weight;
  throw UsageError(fmt::format("{}: there is no mean, because the weight of every rank is 0", label));
}

void World::require_equal(std::uint64_t value, std::string_view what) {
  comm::require_equal(host_->gather_values(value, what), what);
}

void World::note_progress() const noexcept {
  backend_->own_life().note(comm::SignOfLife::Clock::now());
  backend_->job().note_progress();
}
std::chrono::steady_clock::time_point World::last_progress() const noexcept { return backend_->own_life().last(); }

void World::warn(std::string_view text) const noexcept { comm::warn(backend_->log(), rank(), text); }

void World::abort(std::string_view cause) noexcept { backend_->job().abort(cause, nullptr); }
bool World::aborted() const noexcept { return backend_->job().failure() != nullptr; }
void World::throw_if_aborted() const {
  if (const comm::JobFailure* failure = backend_->job().failure()) comm::throw_aborted(*failure);
}

}  // namespace tessera
