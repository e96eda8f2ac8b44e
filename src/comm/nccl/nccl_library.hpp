// The calls of NCCL that Tessera makes, as a table: the real ones come from a library that is opened at run time
// (nccl_dlopen.cpp, the only user of nccl.h), others from tests. Streams are cudaStream_t, memory is the device's.
//
// Thread safety: as NCCL's. Calls on one communicator are made by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"

namespace tessera::comm {

// An NcclFailure has NCCL's own words for a call that failed: `ncclAllGather failed: unhandled system error (…)`.
// Whoever calls adds where.
class NcclFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A communicator that does not block may still be in a call when that returns.
enum class NcclState { done, in_progress };

class NcclLibrary {
 public:
  virtual ~NcclLibrary() = default;

  // "NCCL 2.28.9 (libnccl.so.2)"
  virtual std::string name() const = 0;
  // Launches of all communicators of a context keep the order in which the host makes them (NCCL_LAUNCH_ORDER_IMPLICIT,
  // from 2.26 on). Otherwise the caller has to order each rank's. Never where ranks may share a device: those that are
  // threads have one context, and one rank's reduction would wait for another's gather, which waits for the first.
  virtual bool orders_launches() const = 0;

  // Several ranks may have one device (from 2.30 on, with NCCL_MULTI_RANK_GPU_ENABLE=1).
  virtual bool shares_devices() const = 0;

  // How large a communicator's first collectives have to be for it to make all connections that later ones use.
  virtual Bytes greeting() const = 0;

  using Id = std::array<char, 128>;
  virtual Id unique_id() = 0;

  using Handle = void*;  // ncclComm_t
  struct Place {
    int rank;
    int ranks;
    const char* name;
  };
  // The functions below throw NcclFailure. The calling thread's current CUDA device is the rank's.
  virtual NcclState join(Handle& made, const Id& id, const Place& place) = 0;
  // Among the ranks of `parent` that name the same group, at these places. Collective over the parent. Where the parent
  // does not block, NCCL stores the child in `made` later, from a thread of its own: `made` stays where it is, and is
  // read only when state(parent) is done.
  virtual NcclState split(Handle& made, Handle parent, int group, const Place& place) = 0;
  struct RankAndSize {
    int rank;
    int ranks;
    int device;
  };
  virtual RankAndSize rank_and_size(Handle handle) = 0;
  virtual NcclState state(Handle handle) = 0;  // of the last call, and of what goes on in the background
  virtual NcclState finalize(Handle handle) = 0;
  virtual void destroy(Handle handle) noexcept = 0;
  virtual void abort(Handle handle) noexcept = 0;  // ends what runs, and the handle

  virtual void group_begin() = 0;
  virtual NcclState group_end() = 0;

  struct Call {
    Handle handle;
    void* stream;
  };
  // In place: rank r's part at data + r * part.
  virtual NcclState all_gather(const Call& call, std::byte* data, Bytes part) = 0;
  virtual NcclState broadcast(const Call& call, std::byte* data, Bytes size, int root) = 0;
  virtual NcclState send(const Call& call, const std::byte* data, Bytes size, int to) = 0;
  virtual NcclState receive(const Call& call, std::byte* data, Bytes size, int from) = 0;
  struct Sum {
    const std::byte* data;  // `elements` for each rank
    std::byte* result;
    std::size_t elements;
    DType type;
  };
  virtual NcclState reduce_scatter(const Call& call, const Sum& sum) = 0;

  // Memory that NCCL prefers, and making it known to a communicator; null where this NCCL has neither.
  virtual void* allocate(Bytes size) = 0;
  virtual void release(void* data) noexcept = 0;
  virtual void* add_memory(Handle handle, void* data, Bytes size) = 0;
  virtual void remove_memory(Handle handle, void* memory) noexcept = 0;
};

// The NCCL at `path`, or where the system finds libnccl.so.2 when it is empty. It stays in the process until that ends.
// Throws UnavailableError that says what is missing.
std::unique_ptr<NcclLibrary> open_nccl(const std::string& path);

}  // namespace tessera::comm
