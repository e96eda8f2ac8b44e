// A machine as the simulation of a step knows it: rates of products and of memory, and the links between ranks. Read
// from small JSON files, of which tools/machines has some; docs/cost.md describes them.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json/json.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/device/device.hpp"

namespace tools {

// A rate that depends on the size of what is done: points of (size, rate), between which it is a straight line over the
// logarithm of the size; beyond the first and the last it stays.
class Curve {
 public:
  Curve() = default;
  explicit Curve(double rate) : points_{{1, rate}} {}
  explicit Curve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {}

  bool empty() const { return points_.empty(); }
  double at(double size) const;
  Curve times(double factor) const;
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

struct Link {
  double latency = 0;  // seconds, of a message, or of a collective that reads memory directly
  Curve bandwidth;     // bytes per second and rank in one direction; of a network per host, by the bytes that move
  Curve summing;       // the same for sums; empty: as bandwidth
};

// Convolutions that are about as fast at the same size: kernels of one pixel; larger ones over many channels; and over
// few (fewer than narrow_channels in a group), as a network's first or one of each channel by itself.
enum class ConvolutionClass { pointwise, wide, narrow };
inline constexpr std::size_t narrow_channels = 16;

// FLOP/s reached, over the FLOPs of one product: forward has one, backward two, for both gradients; of few channels it
// is measured with one, since no network asks for the gradient of an image.
struct ConvolutionRates {
  Curve forward;
  Curve backward;
};
using ConvolutionClasses = std::array<ConvolutionRates, 3>;  // by ConvolutionClass; empty: as products of matrices

// How collectives move bytes. direct: everybody reads from everybody, as ranks on the CPU do; ring: NCCL's, as many at
// once as a host has ways out; two_level: between hosts, then inside each.
enum class CollectiveAlgorithm { direct, ring, two_level };

// Returns what a rank moves inside a host (what it lacks), over the bytes of the whole. Where everybody reads from
// everybody, a sum reads a part of every rank, its own too, and writes one, and all of that goes through memory.
double moved_share(CollectiveAlgorithm algorithm, double ranks, bool sums);

struct Machine {
  std::string name;
  std::string about;
  std::size_t ranks_per_host = 1;
  std::array<double, 3> peak = {};                 // FLOP/s of a rank, by DType; 0: not known
  std::array<Curve, 3> products;                   // FLOP/s reached, by DType, over the FLOPs of one product
  std::array<ConvolutionClasses, 3> convolutions;  // by DType
  Curve memory;                                    // bytes per second that passes over memory reach, over their bytes
  Curve to_host;                     // of copies between a device's memory and its host's, in one direction, which do
                                     // not slow the other's; empty: as memory
  Curve to_disk;                     // of a rank's reads and writes there, in one direction; empty: not known
  Curve host_update;                 // of a rank's part of the host's processors, over the bytes that an update reads
                                     // and writes; empty: as memory where to_host is, else not known
  Curve host_memory;                 // of the ranks of a host at once, over the bytes of one; empty: `memory` for each
  double launch = 0;                 // seconds of the host for each operation
  std::optional<double> processors;  // of a host, which the streams of its ranks share
  double all_busy = 1;               // how many times as long computing takes while all of these compute
  bool immediate_compute = false;    // the host computes itself, as on the CPU
  double slowdown = 1;               // of computation beside a collective
  bool one_network = false;          // collectives at once share the links
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  Link host;                    // between the ranks of a host
  std::optional<Link> network;  // between hosts

  tessera::DeviceKind device() const {
    return immediate_compute ? tessera::DeviceKind::cpu : tessera::DeviceKind::cuda;
  }
};

// A name of tools/machines, or the path of a file. Throws tessera::DataError with the path and the place in the file
// for what is no machine, and tessera::UsageError that lists the names for neither.
Machine find_machine(const std::string& name_or_path);
Machine machine_from_json(const Json& json, const std::string& where);  // throws tessera::DataError
Json json_of(const Machine& machine);

std::vector<std::string> machine_names();

// "bandwidth=2x,latency=0,compute=1.3x": of links, of links, of products and memory. Throws tessera::UsageError.
Machine what_if(Machine machine, const std::string& changes);

}  // namespace tools
