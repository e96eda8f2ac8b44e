// Fused attention by cuDNN: the only source that includes cudnn-frontend, which takes a compiler most of a minute.
// Graphs are kept by shape, thread and device.
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <unordered_map>

#include "src/cuda/cudnn_runtime.hpp"
#include "src/cuda/fused_attention.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Uid : std::int64_t { q = 1, k, v, out, statistics, dout, dq, dk, dv };

std::int64_t extent(std::size_t count) { return static_cast<std::int64_t>(count); }

fe::DataType_t type_of(Format format) {
  if (format == Format::bf16) return fe::DataType_t::BFLOAT16;
  if (format == Format::fp16) return fe::DataType_t::HALF;
  throw InternalError("attention of wide elements was asked of cuDNN");
}

// All but addresses. cuDNN takes 16 bytes for granted, as heads of a multiple of 8 have.
using Key = std::array<std::uint64_t, 32>;

Key key_of(const FusedAttention& a, int device) {
  Key key{static_cast<std::uint64_t>(device),
          static_cast<std::uint64_t>(a.format),
          std::uint64_t{a.backward} << 1 | std::uint64_t{a.statistics != nullptr},
          a.sequences,
          a.heads,
          a.rows,
          a.head_dim,
          std::bit_cast<std::uint32_t>(a.scale)};
  std::size_t next = 8;
  for (const Heads* heads : {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv}) {
    for (const std::size_t stride : {heads->sequence_stride, heads->head_stride, heads->row_stride}) {
      key[next++] = stride;
    }
  }
  return key;
}

// A described device stands in place of a handle where tests want a plan without one.
using Described = std::shared_ptr<const fe::DeviceProperties>;

// The graph of one operation and its plan, or why there is none.
class Prepared {
 public:
  Prepared(cudnnHandle_t handle, const FusedAttention& a, const Described& device = nullptr)
      : graph_(std::make_unique<fe::graph::Graph>()) {
    graph_->set_device_properties(device);
    graph_->set_io_data_type(type_of(a.format))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (a.backward) {
      describe_backward(a);
    } else {
      describe_forward(a);
    }
    require(graph_->build(handle, {fe::HeurMode_t::A}));
    require(graph_->get_workspace_size(workspace_bytes_));
  }

  std::size_t workspace_bytes() const { return static_cast<std::size_t>(workspace_bytes_); }

  void run(cudnnHandle_t handle, const FusedAttention& a) {
    const auto set = [&](Uid uid, const void* data) {
      const auto found = places_.find(uid);
      if (found != places_.end()) found->second = const_cast<void*>(data);
    };
    set(Uid::q, a.q.data), set(Uid::k, a.k.data), set(Uid::v, a.v.data), set(Uid::out, a.out.data);
    set(Uid::statistics, a.statistics), set(Uid::dout, a.dout.data);
    set(Uid::dq, a.dq.data), set(Uid::dk, a.dk.data), set(Uid::dv, a.dv.data);
    require(graph_->execute(handle, places_, a.workspace.data));
  }

 private:
  static void require(fe::error_t status) {
    if (!status.is_good()) throw Error("cuDNN: " + status.get_message());
  }

  template <typename Options>
  static Options options_of(const FusedAttention& a) {
    Options options;
    options.set_name(a.backward ? "attention_backward" : "attention").set_attn_scale(a.scale);
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    return options;
  }

  // Gives a tensor its place in memory.
  Tensor lay_out(const Tensor& tensor, Uid uid, const FusedAttention& a, const Heads& heads) {
    tensor->set_uid(uid)
        .set_dim({extent(a.sequences), extent(a.heads), extent(a.rows), extent(a.head_dim)})
        .set_stride({extent(heads.sequence_stride), extent(heads.head_stride), extent(heads.row_stride), 1});
    places_[uid] = nullptr;
    return tensor;
  }
  Tensor lay_out_statistics(const Tensor& tensor, const FusedAttention& a) {
    tensor->set_uid(Uid::statistics)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({extent(a.sequences), extent(a.heads), extent(a.rows), 1})
        .set_stride({extent(a.heads * a.rows), extent(a.rows), 1, 1});
    places_[Uid::statistics] = nullptr;
    return tensor;
  }
  Tensor read(Uid uid, const FusedAttention& a, const Heads& heads) {
    const auto made = std::make_shared<fe::graph::Tensor_attributes>();
    made->set_data_type(type_of(a.format));
    return lay_out(made, uid, a, heads);
  }
  void write(const Tensor& tensor, Uid uid, const FusedAttention& a, const Heads& heads) {
    lay_out(tensor, uid, a, heads)->set_output(true);
  }

  void describe_forward(const FusedAttention& a) {
    auto options = options_of<fe::graph::SDPA_attributes>(a);
    options.set_generate_stats(a.statistics != nullptr);
    const auto results = graph_->sdpa(read(Uid::q, a, a.q), read(Uid::k, a, a.k), read(Uid::v, a, a.v), options);
    write(results[0], Uid::out, a, a.out);
    if (a.statistics != nullptr) lay_out_statistics(results[1], a)->set_output(true);
  }

  void describe_backward(const FusedAttention& a) {
    auto options = options_of<fe::graph::SDPA_backward_attributes>(a);
    options.set_deterministic_algorithm(true);
    const auto made = std::make_shared<fe::graph::Tensor_attributes>();
    const auto results = graph_->sdpa_backward(read(Uid::q, a, a.q), read(Uid::k, a, a.k), read(Uid::v, a, a.v),
                                               read(Uid::out, a, a.out), read(Uid::dout, a, a.dout),
                                               lay_out_statistics(made, a), options);
    write(results[0], Uid::dq, a, a.dq);
    write(results[1], Uid::dk, a, a.dk);
    write(results[2], Uid::dv, a, a.dv);
  }

  std::unique_ptr<fe::graph::Graph> graph_;
  std::unordered_map<std::int64_t, void*> places_;
  std::int64_t workspace_bytes_ = 0;
};

// Null where there is no kernel.
std::unique_ptr<Prepared> prepare(const FusedAttention& a) {
  try {
    return std::make_unique<Prepared>(cudnn::handle(), a);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera: {} computes no {} attention over {} rows in {} heads of {}, own kernels do: {}\n",
               cudnn::runtime().in_words, a.backward ? "backward" : "forward", a.rows, a.heads, a.head_dim,
               error.what());
    return nullptr;
  }
}

Prepared* prepared(const FusedAttention& a) {
  thread_local std::map<Key, std::unique_ptr<Prepared>> kept;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) throw Error("cudaGetDevice failed");
  const Key key = key_of(a, device);
  const auto found = kept.find(key);
  if (found != kept.end()) return found->second.get();
  return kept.emplace(key, prepare(a)).first->second.get();
}

std::optional<std::size_t> workspace_of(const FusedAttention& a) {
  const Prepared* const found = prepared(a);
  return found == nullptr ? std::nullopt : std::optional(found->workspace_bytes());
}

void run(void* native, const FusedAttention& a) { prepared(a)->run(cudnn::handle_on(native), a); }

}  // namespace

const FusedAttentionLibrary& fused_attention_library() {
  static const FusedAttentionLibrary found{.missing = cudnn::runtime().missing,
                                           .in_words = cudnn::runtime().in_words,
                                           .workspace_bytes = workspace_of,
                                           .run = run};
  return found;
}

}  // namespace tessera::nn::cuda
