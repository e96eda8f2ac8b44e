// NCCL itself, opened when it is first needed: a build needs its header only, starts on machines without it, and can
// use another release than it was built with. The only user of nccl.h.
#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "comm/halves.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

constexpr int oldest_version = NCCL_VERSION(2, 18, 1);    // ncclCommInitRankConfig with names
constexpr int ordering_version = NCCL_VERSION(2, 26, 2);  // NCCL_LAUNCH_ORDER_IMPLICIT
constexpr int sharing_version = NCCL_VERSION(2, 30, 0);   // NCCL_MULTI_RANK_GPU_ENABLE
constexpr const char* usual_name = "libnccl.so.2";
constexpr const char* order_variable = "NCCL_LAUNCH_ORDER_IMPLICIT";
constexpr const char* sharing_variable = "NCCL_MULTI_RANK_GPU_ENABLE";

// Above it NCCL takes no other algorithm, and protocol, than for larger data.
constexpr Bytes large_enough{std::uint64_t{32} << 20};

bool says_one(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}

// Never closed: after an abort threads of NCCL may still run its code.
void* open_library(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  throw UnavailableError(
      fmt::format("NCCL cannot be used: {}; install it, or name another with TESSERA_NCCL", ::dlerror()));
}

template <typename Function>
Function optional_symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

template <typename Function>
Function symbol(void* library, const char* name) {
  const auto found = optional_symbol<Function>(library, name);
  if (found != nullptr) return found;
  throw UnavailableError(fmt::format("NCCL cannot be used: the library that was opened has no {}", name));
}

ncclDataType_t type_of(DType type) {
  switch (type) {
    case DType::fp32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::fp16: return ncclFloat16;
    case DType::u8:
    case DType::int8: break;
  }
  throw InternalError(fmt::format("no element type has the number {}", static_cast<int>(type)));
}

cudaStream_t stream_of(const NcclLibrary::Call& call) { return static_cast<cudaStream_t>(call.stream); }
ncclComm_t comm_of(NcclLibrary::Handle handle) { return static_cast<ncclComm_t>(handle); }
ncclComm_t comm_of(const NcclLibrary::Call& call) { return comm_of(call.handle); }

ncclConfig_t config_of(const NcclLibrary::Place& place) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  // Only a communicator that does not block may be aborted at any moment: a blocking one has no handle while it
  // connects, and its launch may be stuck behind a kernel that only the abort ends. It costs a thread of NCCL's for
  // each launch.
  config.blocking = 0;
  config.commName = place.name;
  return config;
}

class OpenedNccl final : public NcclLibrary {
 public:
  explicit OpenedNccl(const std::string& path) : path_(path), library_(open_library(path)) {
    check(version_of_(&version_), "ncclGetVersion");
    if (version_ < oldest_version) {
      throw UnavailableError(fmt::format("{} is too old: 2.18.1 is the oldest that will do", name()));
    }
  }

  std::string name() const override {
    return fmt::format("NCCL {}.{}.{} ({})", version_ / 10'000, version_ / 100 % 100, version_ % 100, path_);
  }
  bool orders_launches() const override { return version_ >= ordering_version && says_one(order_variable); }
  bool shares_devices() const override { return version_ >= sharing_version && says_one(sharing_variable); }
  Bytes greeting() const override { return large_enough; }

  Id unique_id() override {
    ncclUniqueId id;
    static_assert(sizeof(id.internal) == std::tuple_size_v<Id>);
    check(unique_id_(&id), "ncclGetUniqueId");
    Id bytes;
    std::memcpy(bytes.data(), id.internal, bytes.size());
    return bytes;
  }

  NcclState join(Handle& made, const Id& id, const Place& place) override {
    ncclUniqueId unique;
    std::memcpy(unique.internal, id.data(), id.size());
    ncclConfig_t config = config_of(place);
    ncclComm_t comm = nullptr;
    const ncclResult_t result = join_(&comm, place.ranks, unique, place.rank, &config);
    made = comm;
    return checked(result, "ncclCommInitRankConfig", comm);
  }
  NcclState split(Handle& made, Handle parent, int group, const Place& place) override {
    ncclConfig_t config = config_of(place);
    ncclComm_t* const kept = reinterpret_cast<ncclComm_t*>(&made);
    return checked(split_(comm_of(parent), group, place.rank, kept, &config), "ncclCommSplit", parent);
  }
  RankAndSize rank_and_size(Handle handle) override {
    RankAndSize found{};
    check(rank_of_(comm_of(handle), &found.rank), "ncclCommUserRank");
    check(count_of_(comm_of(handle), &found.ranks), "ncclCommCount");
    check(device_of_(comm_of(handle), &found.device), "ncclCommCuDevice");
    return found;
  }
  NcclState state(Handle handle) override {
    ncclResult_t result = ncclSuccess;
    check(state_(comm_of(handle), &result), "ncclCommGetAsyncError");
    return checked(result, "NCCL", handle);
  }
  NcclState finalize(Handle handle) override { return checked(finalize_(comm_of(handle)), "ncclCommFinalize", handle); }
  void destroy(Handle handle) noexcept override { static_cast<void>(destroy_(comm_of(handle))); }
  void abort(Handle handle) noexcept override { static_cast<void>(abort_(comm_of(handle))); }

  void group_begin() override { check(group_begin_(), "ncclGroupStart"); }
  NcclState group_end() override { return checked(group_end_(), "ncclGroupEnd", nullptr); }

  NcclState all_gather(const Call& call, std::byte* data, Bytes part) override {
    int rank = 0;
    check(rank_of_(comm_of(call), &rank), "ncclCommUserRank");
    const std::byte* const own = data + static_cast<std::size_t>(rank) * part.count();
    return checked(all_gather_(own, data, part.count(), ncclUint8, comm_of(call), stream_of(call)), "ncclAllGather",
                   call.handle);
  }
  NcclState broadcast(const Call& call, std::byte* data, Bytes size, int root) override {
    return checked(broadcast_(data, data, size.count(), ncclUint8, root, comm_of(call), stream_of(call)),
                   "ncclBroadcast", call.handle);
  }
  NcclState send(const Call& call, const std::byte* data, Bytes size, int to) override {
    return checked(send_(data, size.count(), ncclUint8, to, comm_of(call), stream_of(call)), "ncclSend", call.handle);
  }
  NcclState receive(const Call& call, std::byte* data, Bytes size, int from) override {
    return checked(receive_(data, size.count(), ncclUint8, from, comm_of(call), stream_of(call)), "ncclRecv",
                   call.handle);
  }
  NcclState reduce_scatter(const Call& call, const Sum& sum) override {
    return checked(
        reduce_scatter_(sum.data, sum.result, sum.elements, type_of(sum.type), ncclSum, comm_of(call), stream_of(call)),
        "ncclReduceScatter", call.handle);
  }

  void* allocate(Bytes size) override {
    if (allocate_ == nullptr || release_ == nullptr) return nullptr;
    void* data = nullptr;
    return allocate_(&data, size.count()) == ncclSuccess ? data : nullptr;
  }
  void release(void* data) noexcept override { static_cast<void>(release_(data)); }
  void* add_memory(Handle handle, void* data, Bytes size) override {
    if (add_memory_ == nullptr || remove_memory_ == nullptr) return nullptr;
    void* memory = nullptr;
    return add_memory_(comm_of(handle), data, size.count(), &memory) == ncclSuccess ? memory : nullptr;
  }
  void remove_memory(Handle handle, void* memory) noexcept override {
    static_cast<void>(remove_memory_(comm_of(handle), memory));
  }

 private:
  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess) fail(result, call, nullptr);
  }
  NcclState checked(ncclResult_t result, const char* call, Handle handle) const {
    if (result == ncclSuccess) return NcclState::done;
    if (result == ncclInProgress) return NcclState::in_progress;
    fail(result, call, handle);
  }
  [[noreturn]] void fail(ncclResult_t result, const char* call, Handle handle) const {
    const char* const last = last_error_(comm_of(handle));
    const bool more = last != nullptr && *last != '\0';
    throw NcclFailure(
        fmt::format("{} failed: {}{}", call, error_text_(result), more ? fmt::format(" ({})", last) : ""));
  }

  std::string path_;
  void* library_;
  int version_ = 0;

#define TESSERA_NCCL(member, function) decltype(&(function)) member = symbol<decltype(&(function))>(library_, #function)
#define TESSERA_NCCL_OPTIONAL(member, function) \
  decltype(&(function)) member = optional_symbol<decltype(&(function))>(library_, #function)
  TESSERA_NCCL(version_of_, ncclGetVersion);
  TESSERA_NCCL(unique_id_, ncclGetUniqueId);
  TESSERA_NCCL(join_, ncclCommInitRankConfig);
  TESSERA_NCCL(state_, ncclCommGetAsyncError);
  TESSERA_NCCL(split_, ncclCommSplit);
  TESSERA_NCCL(rank_of_, ncclCommUserRank);
  TESSERA_NCCL(count_of_, ncclCommCount);
  TESSERA_NCCL(device_of_, ncclCommCuDevice);
  TESSERA_NCCL(finalize_, ncclCommFinalize);
  TESSERA_NCCL(destroy_, ncclCommDestroy);
  TESSERA_NCCL(abort_, ncclCommAbort);
  TESSERA_NCCL(error_text_, ncclGetErrorString);
  TESSERA_NCCL(last_error_, ncclGetLastError);
  TESSERA_NCCL(group_begin_, ncclGroupStart);
  TESSERA_NCCL(group_end_, ncclGroupEnd);
  TESSERA_NCCL(all_gather_, ncclAllGather);
  TESSERA_NCCL(broadcast_, ncclBroadcast);
  TESSERA_NCCL(send_, ncclSend);
  TESSERA_NCCL(receive_, ncclRecv);
  TESSERA_NCCL(reduce_scatter_, ncclReduceScatter);
  TESSERA_NCCL_OPTIONAL(allocate_, ncclMemAlloc);
  TESSERA_NCCL_OPTIONAL(release_, ncclMemFree);
  TESSERA_NCCL_OPTIONAL(add_memory_, ncclCommRegister);
  TESSERA_NCCL_OPTIONAL(remove_memory_, ncclCommDeregister);
#undef TESSERA_NCCL
#undef TESSERA_NCCL_OPTIONAL
};

}  // namespace

bool has_nccl() { return true; }

// NCCL reads its variables once, when it is first called, so what holds for one job of the process holds for all.
std::unique_ptr<NcclLibrary> open_nccl(const std::string& path) {
  const bool shares = says_one(sharing_variable);
  ::setenv(order_variable, shares ? "0" : "1", shares ? 1 : 0);
  return std::make_unique<OpenedNccl>(path.empty() ? usual_name : path);
}

}  // namespace tessera::comm
