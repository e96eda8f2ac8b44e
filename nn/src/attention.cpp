// Multi-head self-attention, block by block of queries: the products are the BLAS's, and what stands between
// them is in rows/attention_lanes.hpp.
#include "tessera/nn/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/attention_tiles.hpp"
#include "src/exported.hpp"
#include "src/gemm.hpp"
#include "src/operation.hpp"
#include "src/panel.hpp"
#include "src/rows/active_rows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"

namespace tessera::nn {

namespace {

constexpr std::size_t block_rows = 64;  // queries at a time

constexpr std::size_t round_up(std::size_t count, std::size_t unit) { return (count + unit - 1) / unit * unit; }

// Hands out parts of a pass's scratch memory, 16 numbers aligned; without memory it counts them.
template <typename Real>
class Parts {
 public:
  explicit Parts(Real* memory) : memory_(memory) {}

  Real* take(std::size_t count) {
    Real* const part = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += round_up(count, 16);
    return part;
  }
  std::size_t used() const { return used_; }

 private:
  Real* memory_;
  std::size_t used_ = 0;
};

// Queries first, … first + rows - 1 of a sequence; they look at `keys` keys.
struct Block {
  std::size_t first;
  std::size_t rows;
  std::size_t keys;
};

// Scratch memory of both passes. Panels are for bf16 and fp16 alone.
template <typename T>
struct Rooms {
  using Real = Arithmetic<T>;

  Rooms(const AttentionShape& shape, Parts<Real>& parts)
      : rows(std::min(block_rows, shape.sequence)),
        head_dim(shape.head_dim),
        stride(round_up(shape.sequence, 16)),
        scores(parts.take(rows * stride)),
        factors(reinterpret_cast<float*>(parts.take(round_up(shape.sequence, 64)))),
        q(panel(parts, rows * shape.head_dim)),
        k(panel(parts, shape.sequence * shape.head_dim)),
        v(panel(parts, shape.sequence * shape.head_dim)) {}

  static Real* panel(Parts<Real>& parts, std::size_t count) { return has_panels<T> ? parts.take(count) : nullptr; }

  // to [rows, keys] = of · keysᵀ
  void multiply_with_keys(const Block& block, Panel<const Real> of, Panel<const Real> keys, Real* to) const {
    gemm<Real>({.a = {of.data, false, of.stride},
                .b = {keys.data, true, keys.stride},
                .c = to,
                .m = block.rows,
                .n = block.keys,
                .k = head_dim,
                .c_stride = stride});
  }

  std::size_t rows;
  std::size_t head_dim;
  std::size_t stride;  // of scores
  Real* scores;        // [rows, stride]
  float* factors;      // [a sequence, rounded up to 64]
  Real* q;             // [rows, head_dim]
  Real* k;             // [sequence, head_dim]
  Real* v;             // [sequence, head_dim]
};

template <typename T>
struct ForwardRooms : Rooms<T> {
  using typename Rooms<T>::Real;

  ForwardRooms(const AttentionShape& shape, Parts<Real>& parts)
      : Rooms<T>(shape, parts),
        out(Rooms<T>::panel(parts, this->rows * shape.head_dim)),
        inverse_sums(parts.take(this->rows)),
        statistics(parts.take(this->rows)) {}

  Real* out;           // [rows, head_dim]
  Real* inverse_sums;  // [rows]
  Real* statistics;    // [rows], when the caller wants none
};

template <typename T>
struct BackwardRooms : Rooms<T> {
  using typename Rooms<T>::Real;

  BackwardRooms(const AttentionShape& shape, Parts<Real>& parts)
      : Rooms<T>(shape, parts),
        gradients(parts.take(this->rows * this->stride)),
        dout(Rooms<T>::panel(parts, this->rows * shape.head_dim)),
        dq(Rooms<T>::panel(parts, this->rows * shape.head_dim)),
        dk(Rooms<T>::panel(parts, shape.sequence * shape.head_dim)),
        dv(Rooms<T>::panel(parts, shape.sequence * shape.head_dim)) {}

  Real* gradients;  // [rows, stride]
  Real* dout;       // [rows, head_dim]
  Real* dq;         // [rows, head_dim]
  Real* dk;         // [sequence, head_dim]
  Real* dv;         // [sequence, head_dim]
};

// One head of one sequence, and where its columns are.
struct Head {
  AttentionShape shape;
  std::size_t sequence;
  std::size_t head;

  // Part 0, 1 or 2: q, k or v.
  template <typename T>
  Columns<T> of_qkv(MatrixView<T> qkv, std::size_t part, std::size_t first_row, std::size_t rows) const {
    return columns_of(qkv, {.first_row = sequence * shape.sequence + first_row,
                            .rows = rows,
                            .first_column = part * shape.dim() + head * shape.head_dim,
                            .columns = shape.head_dim});
  }
  // Returns columns of a matrix with `queries` rows for each sequence.
  template <typename T>
  Columns<T> of_out(MatrixView<T> out, std::size_t queries, std::size_t first_row, std::size_t rows) const {
    return columns_of(out, {.first_row = sequence * queries + first_row,
                            .rows = rows,
                            .first_column = head * shape.head_dim,
                            .columns = shape.head_dim});
  }
  std::size_t first_statistic() const { return (sequence * shape.heads + head) * shape.sequence; }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(shape.head_dim)); }
};

template <typename Body>
void for_each_block(std::size_t first, const AttentionShape& shape, Body body) {
  for (; first < shape.sequence; first += block_rows) {
    const std::size_t rows = std::min(block_rows, shape.sequence - first);
    body(Block{first, rows, shape.causal ? first + rows : shape.sequence});
  }
}

// The mask of all heads from the first row of qkv on.
DropoutMask mask_of(const Dropout& of, const AttentionShape& shape) {
  Dropout rows = of;
  rows.key.first_row = rows.key.first_row * shape.mask_step() + shape.first_head;
  return mask_of(rows, shape.rows() * shape.mask_step());
}

DropoutMask mask_of(const DropoutMask& all, const Head& head, const Block& block) {
  DropoutMask mask = all;
  mask.first_row += (head.sequence * head.shape.sequence + block.first) * head.shape.mask_step() + head.head;
  return mask;
}

// Softmax and its gradient have these in common.
template <typename T>
AttentionRows rows_of(const Rooms<T>& rooms, const Head& head, const Block& block, const DropoutMask& mask) {
  return {.format = format_of<Arithmetic<T>>,
          .scores = rooms.scores,
          .stride = rooms.stride,
          .rows = block.rows,
          .first_keys = head.shape.causal ? block.first + 1 : block.keys,
          .key_step = head.shape.causal ? std::size_t{1} : std::size_t{0},
          .keys = block.keys,
          .scale = head.scale(),
          .mask = mask.drop_below == 0 ? nullptr : &mask,
          .mask_row_step = head.shape.mask_step(),
          .factors = rooms.factors};
}

template <typename T>
class ForwardPass {
 public:
  using Real = Arithmetic<T>;

  ForwardPass(const AttentionForward<T>& of, const RowTable& run, Real* scratch)
      : of_(of), run_(run), parts_(scratch), rooms_(of.shape, parts_), mask_(mask_of(of.dropout, of.shape)) {}

  void head(const Head& head) {
    const std::size_t all = of_.shape.sequence;
    const Panel<const Real> k = load_panel(run_, head.of_qkv(of_.qkv, 1, 0, all), rooms_.k);
    const Panel<const Real> v = load_panel(run_, head.of_qkv(of_.qkv, 2, 0, all), rooms_.v);
    for_each_block(all - queries(), of_.shape, [&](const Block& block) {
      const Panel<const Real> q = load_panel(run_, head.of_qkv(of_.qkv, 0, block.first, block.rows), rooms_.q);
      rooms_.multiply_with_keys(block, q, k, rooms_.scores);
      softmax(head, block);
      multiply_with_values(head, block, v);
    });
  }

 private:
  std::size_t queries() const { return of_.queries == 0 ? of_.shape.sequence : of_.queries; }

  void softmax(const Head& head, const Block& block) {
    const DropoutMask mask = mask_of(mask_, head, block);
    AttentionRows rows = rows_of<T>(rooms_, head, block, mask);
    rows.new_statistics =
        of_.statistics == nullptr ? rooms_.statistics : of_.statistics + head.first_statistic() + block.first;
    rows.inverse_sums = rooms_.inverse_sums;
    run_.attention_rows(rows);
  }

  void multiply_with_values(const Head& head, const Block& block, Panel<const Real> v) {
    const std::size_t first = block.first - (of_.shape.sequence - queries());
    const Columns<T> target = head.of_out(of_.out, queries(), first, block.rows);
    const Panel<Real> out = panel_for(target, rooms_.out);
    gemm<Real>({.a = {rooms_.scores, false, rooms_.stride},
                .b = {v.data, false, v.stride},
                .c = out.data,
                .m = block.rows,
                .n = of_.shape.head_dim,
                .k = block.keys,
                .c_stride = out.stride});
    store_panel(run_, out, target, rooms_.inverse_sums);
  }

  const AttentionForward<T>& of_;
  const RowTable& run_;
  Parts<Real> parts_;
  ForwardRooms<T> rooms_;
  DropoutMask mask_;
};

template <typename T>
class BackwardPass {
 public:
  using Real = Arithmetic<T>;

  BackwardPass(const AttentionBackward<T>& of, const RowTable& run, Real* scratch)
      : of_(of), run_(run), parts_(scratch), rooms_(of.shape, parts_), mask_(mask_of(of.dropout, of.shape)) {}

  void head(const Head& head) {
    const std::size_t all = of_.shape.sequence;
    const Columns<T> dk = head.of_qkv(of_.dqkv, 1, 0, all);
    const Columns<T> dv = head.of_qkv(of_.dqkv, 2, 0, all);
    const KeysAndValues kv{load_panel(run_, head.of_qkv(of_.qkv, 1, 0, all), rooms_.k),
                           load_panel(run_, head.of_qkv(of_.qkv, 2, 0, all), rooms_.v), panel_for(dk, rooms_.dk),
                           panel_for(dv, rooms_.dv)};
    fill_zero(kv.dk, all, of_.shape.head_dim);
    fill_zero(kv.dv, all, of_.shape.head_dim);
    for_each_block(0, of_.shape, [&](const Block& block) { add_block(head, block, kv); });
    if (has_panels<T>) store_panel(run_, kv.dk, dk, nullptr);
    if (has_panels<T>) store_panel(run_, kv.dv, dv, nullptr);
  }

 private:
  struct KeysAndValues {
    Panel<const Real> k;
    Panel<const Real> v;
    Panel<Real> dk;  // sums over the blocks
    Panel<Real> dv;
  };

  void add_block(const Head& head, const Block& block, const KeysAndValues& kv) {
    const Panel<const Real> q = load_panel(run_, head.of_qkv(of_.qkv, 0, block.first, block.rows), rooms_.q);
    const Panel<const Real> dout =
        load_panel(run_, head.of_out(of_.dout, of_.shape.sequence, block.first, block.rows), rooms_.dout);
    rooms_.multiply_with_keys(block, q, kv.k, rooms_.scores);
    rooms_.multiply_with_keys(block, dout, kv.v, rooms_.gradients);
    softmax_gradient(head, block);
    const Columns<T> target = head.of_qkv(of_.dqkv, 0, block.first, block.rows);
    const Panel<Real> dq = panel_for(target, rooms_.dq);
    gemm<Real>({.a = {rooms_.gradients, false, rooms_.stride},
                .b = {kv.k.data, false, kv.k.stride},
                .c = dq.data,
                .m = block.rows,
                .n = of_.shape.head_dim,
                .k = block.keys,
                .c_stride = dq.stride});
    if (has_panels<T>) store_panel(run_, dq, target, nullptr);
    add_for_keys(block, rooms_.gradients, q, kv.dk);
    add_for_keys(block, rooms_.scores, dout, kv.dv);
  }

  // sums [keys, head_dim] += ofᵀ · rows
  void add_for_keys(const Block& block, const Real* of, Panel<const Real> rows, Panel<Real> sums) {
    gemm<Real>({.a = {of, true, rooms_.stride},
                .b = {rows.data, false, rows.stride},
                .c = sums.data,
                .m = block.keys,
                .n = of_.shape.head_dim,
                .k = block.rows,
                .add = true,
                .c_stride = sums.stride});
  }

  void softmax_gradient(const Head& head, const Block& block) {
    const DropoutMask mask = mask_of(mask_, head, block);
    AttentionRows rows = rows_of<T>(rooms_, head, block, mask);
    rows.gradients = rooms_.gradients;
    rows.statistics = of_.statistics + head.first_statistic() + block.first;
    run_.attention_rows(rows);
  }

  const AttentionBackward<T>& of_;
  const RowTable& run_;
  Parts<Real> parts_;
  BackwardRooms<T> rooms_;
  DropoutMask mask_;
};

// Scratch memory of the thread, when it is the helper of another: that one has the caller's. Kept for the next step.
template <typename Real>
Real* helper_room(std::size_t count) {
  thread_local std::vector<Real> room;
  constexpr std::size_t line = 64 / sizeof(Real);
  if (room.size() < count + line) room.resize(count + line);
  const auto place = reinterpret_cast<std::uintptr_t>(room.data());
  return room.data() + (64 - place % 64) % 64 / sizeof(Real);
}

// Heads of sequences, shared among the threads of the operation. `scratch` counts what a pass needs.
template <typename Pass, typename Operation>
void for_each_head(const Operation& of, std::size_t scratch, const RowTable& run) {
  const AttentionShape& shape = of.shape;
  const std::size_t work_of_each = shape.sequence * shape.sequence * shape.head_dim;
  const parallel::Shares shares{.count = shape.sequences * shape.heads,
                                .least = (std::size_t{1} << 18) / work_of_each + 1};
  parallel::in_shares(shares, [&](std::size_t begin, std::size_t end, std::size_t worker) {
    Pass pass(of, run, worker == 0 ? of.scratch : helper_room<typename Pass::Real>(scratch));
    for (std::size_t at = begin; at < end; ++at) pass.head(Head{shape, at / shape.heads, at % shape.heads});
  });
}

template <typename T>
void check(const AttentionShape& shape, MatrixView<const T> qkv, const Dropout& dropout) {
  if (shape.sequence == 0 || shape.heads == 0 || shape.head_dim == 0) {
    throw UsageError(fmt::format("attention: sequence {}, heads {} and head_dim {} must all be at least 1",
                                 shape.sequence, shape.heads, shape.head_dim));
  }
  require_shape("attention: qkv", qkv, shape.rows(), 3 * shape.dim());
  mask_of(dropout, shape);
}

}  // namespace

template <Element T>
void attention_forward(Stream& stream, const AttentionForward<T>& of) {
  check(of.shape, of.qkv, of.dropout);
  if (of.queries > of.shape.sequence) {
    throw UsageError(
        fmt::format("attention: the last {} rows of sequences of {} are wanted", of.queries, of.shape.sequence));
  }
  const std::size_t queries = of.queries == 0 ? of.shape.sequence : of.queries;
  require_shape("attention: out", of.out, of.shape.sequences * queries, of.shape.dim());
  if (on_cuda(stream)) {
    const cuda::AttentionTiles tiles = tiles_of(of, mask_of(of.dropout, of.shape));
    return issue<T>(stream, "attention", [tiles](void* native) { cuda::attentions::forward(native, tiles); });
  }
  stream.submit(
      [of, &run = active_rows()] { for_each_head<ForwardPass<T>>(of, attention_forward_scratch<T>(of.shape), run); });
}

template <Element T>
void attention_backward(Stream& stream, const AttentionBackward<T>& of) {
  check(of.shape, of.qkv, of.dropout);
  require_shape("attention: dout", of.dout, of.shape.rows(), of.shape.dim());
  require_shape("attention: dqkv", of.dqkv, of.shape.rows(), 3 * of.shape.dim());
  if (on_cuda(stream)) {
    const cuda::AttentionTiles tiles = tiles_of(of, mask_of(of.dropout, of.shape));
    return issue<T>(stream, "attention", [tiles](void* native) { cuda::attentions::backward(native, tiles); });
  }
  stream.submit(
      [of, &run = active_rows()] { for_each_head<BackwardPass<T>>(of, attention_backward_scratch<T>(of.shape), run); });
}

template <Element T>
std::size_t attention_forward_scratch(const AttentionShape& shape, DeviceKind device) {
  if (device == DeviceKind::cuda) {
    return cuda::attentions::forward_scratch_bytes(tiles_of<T>(shape, {}, {})) / sizeof(float);
  }
  Parts<Arithmetic<T>> parts(nullptr);
  ForwardRooms<T>(shape, parts);
  return parts.used();
}

template <Element T>
std::size_t attention_backward_scratch(const AttentionShape& shape, DeviceKind device) {
  if (device == DeviceKind::cuda) {
    return cuda::attentions::backward_scratch_bytes(tiles_of<T>(shape, {}, {})) / sizeof(float);
  }
  Parts<Arithmetic<T>> parts(nullptr);
  BackwardRooms<T>(shape, parts);
  return parts.used();
}

#define TESSERA_ATTENTION(T)                                                                             \
  template TESSERA_EXPORTED void attention_forward(Stream&, const AttentionForward<T>&);                 \
  template TESSERA_EXPORTED void attention_backward(Stream&, const AttentionBackward<T>&);               \
  template TESSERA_EXPORTED std::size_t attention_forward_scratch<T>(const AttentionShape&, DeviceKind); \
  template TESSERA_EXPORTED std::size_t attention_backward_scratch<T>(const AttentionShape&, DeviceKind);
TESSERA_FOR_EACH_ELEMENT(TESSERA_ATTENTION)

}  // namespace tessera::nn
