// Collectives among a group of ranks, on a stream, in place. Backends: local (ranks are threads), mpi (ranks are
// processes), nccl (ranks have a GPU each) and modelled (one real rank of an imagined job, simulate.hpp).
//
// The group is all ranks of the job or a part of them (World::make_communicator). rank(), size(), roots and parts of
// buffers count places in the group; errors name ranks of the job, but that what they say of a call's own arguments (a
// root that does not exist) speaks of places. Groups wait for nobody outside them, and a failure in one ends the job
// for all.
//
// The contract is the same for every backend, and one conformance suite proves it (on modelled, as far as it makes
// sense without peers):
//
// - Agreement: every rank of the group calls the same collectives in the same order, each time with the same signature
//   (kind, label, bytes, dtype, divisor, root). Ranks that disagree all get a CommunicationError that names both calls.
//   On nccl one order holds for the calls of all communicators together.
//
// - Asynchrony: a call enqueues and returns. It never synchronises and never blocks the host thread. The stream must be
//   `queued`, and one communicator is driven by one stream at a time.
//
// - Completion: when a collective has completed on a rank's stream, every peer is finished with that rank's memory.
//
// - Deadline: a peer that does not come within the world's timeout is a CommunicationError on the ranks that waited. It
//   names the collective, its sequence number and the missing ranks.
//
// - Failure: after any failure the world is aborted. Collectives in flight and later ones fail with an AbortedError
// that
//   carries the first cause. Errors surface as the stream's failure.
//
// - Sums are formed in fp32 in the order of places, which is rank order where the group is everybody (numerics.md).
//
// - Groups: all_gather and reduce_scatter take several segments as one collective with one signature. Every rank
// arrives
//   once and departs once, and each segment gets what a collective of its own would give it, bit for bit. Segments may
//   differ in size, type and divisor; what one of them writes, no other one reads or writes.
//
// - Lifetime: labels are views, and so are the segments of a group of several: the caller keeps both alive until the
//   collective has run. A single segment is copied.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/base/transfer.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/accumulate.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// In place: the part of the rank at place r is the `shard` bytes at data + r * shard; afterwards all size() * shard
// bytes are the same on every rank.
struct AllGather {
  std::byte* data = nullptr;
  Bytes shard{};
  std::string_view label{};
};

// data: size() * shard_elements of dtype `wire` on every rank. result: this rank's shard_elements in fp32,
//   result = sum / divisor, with Accumulate::sum (result + sum) / divisor,
//   with Accumulate::terms (((result + part of place 0) + part of place 1) + …) / divisor.
// Ranks need not agree about `accumulate`. Where NCCL forms sums itself (SumChoice::fast), `terms` is a UsageError.
// `result` may be this rank's own part of `data` (when wire is fp32); otherwise they do not overlap. `data` is left as
// it was.
struct ReduceScatter {
  const std::byte* data = nullptr;
  DType wire = DType::fp32;
  float* result = nullptr;
  std::size_t shard_elements = 0;
  kernels::Accumulate accumulate = kernels::Accumulate::no;
  float divisor = 1.0f;
  std::string_view label{};
};

// data[i] = (sum over ranks of data[i]) / divisor, fp32, in place, any count.
struct AllReduce {
  float* data = nullptr;
  std::size_t elements = 0;
  float divisor = 1.0f;
  std::string_view label{};
};

struct Broadcast {
  std::byte* data = nullptr;
  Bytes size{};
  int root = 0;  // a place
  std::string_view label{};
};

// Any parts of anybody's memory to anybody else's, or to another place of one's own. All ranks have the same list, of
// which their signatures compare the sum of bytes alone, and which the caller keeps until the collective has run. On
// each rank everything stands in one allocation, at `data` and behind it, from where sources and targets count. Nothing
// that a rank gets overlaps what it gives, or gets else.
struct Redistribute {
  std::byte* data = nullptr;
  std::span<const Transfer> transfers{};
  std::string_view label{};
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;                 // this rank's place in the group
  virtual int size() const = 0;                 // of the group
  virtual const std::string& name() const = 0;  // appears in errors: "gather", "control", "reduce over shard"

  void all_gather(Stream& stream, const AllGather& operation) { all_gather(stream, std::span(&operation, 1)); }
  void reduce_scatter(Stream& stream, const ReduceScatter& operation) {
    reduce_scatter(stream, std::span(&operation, 1));
  }
  virtual void all_gather(Stream& stream, std::span<const AllGather> segments) = 0;
  virtual void reduce_scatter(Stream& stream, std::span<const ReduceScatter> segments) = 0;
  virtual void all_reduce(Stream& stream, const AllReduce& operation) = 0;
  virtual void broadcast(Stream& stream, const Broadcast& operation) = 0;
  virtual void redistribute(Stream& stream, const Redistribute& operation) = 0;
  virtual void barrier(Stream& stream, std::string_view label) = 0;

 protected:
  Communicator() = default;
};

}  // namespace tessera

#pragma GCC visibility pop
