// Releases 2 and 3 of oneDNN. Each thread keeps the primitives of the convolutions that it has met, because making one
// compiles code. Weights are reordered at each call into the layout that a primitive likes best.
#include "vision/src/convolution/onednn.hpp"

#include <algorithm>
#include <cstdint>
#include <dnnl.hpp>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nn/src/onednn_runtime.hpp"
#include "nn/src/operation.hpp"
#include "nn/src/panel.hpp"
#include "nn/src/rows/active_rows.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/parallel.hpp"

namespace tessera::vision::convolutions::by_onednn {

namespace {

using dnnl::memory;
using Type = memory::data_type;

template <Element T>
inline constexpr bool supported = std::is_same_v<T, float> || std::is_same_v<T, bf16>;

template <Element T>
constexpr Type type_of() {
  return std::is_same_v<T, bf16> ? Type::bf16 : Type::f32;
}

enum class Direction { forward, data, weights };

struct Key {
  ConvolutionGeometry of;
  Direction direction;
  Type type;
  bool bias;
  auto operator<=>(const Key&) const = default;
};

memory::dim dim(std::size_t extent) { return static_cast<memory::dim>(extent); }
memory::dims dims(Pair32 of) { return {dim(of.height), dim(of.width)}; }

memory::desc images(const ConvolutionGeometry& of, Pair32 size, std::size_t channels, Type type) {
  return {{dim(of.images), dim(channels), dim(size.height), dim(size.width)}, type, memory::format_tag::nhwc};
}

using Tag = memory::format_tag;

memory::dims weight_dims(const ConvolutionGeometry& of) {
  memory::dims size{dim(of.group_out()), dim(of.group_in()), dim(of.kernel.height), dim(of.kernel.width)};
  if (of.groups > 1) size.insert(size.begin(), dim(of.groups));
  return size;
}
memory::desc weights_as_liked(const ConvolutionGeometry& of, Type type) { return {weight_dims(of), type, Tag::any}; }
memory::desc plain_weights(const ConvolutionGeometry& of, Type type) {
  return {weight_dims(of), type, of.groups == 1 ? Tag::oihw : Tag::goihw};
}

// All primitives of a convolution are described by this.
struct Description {
  explicit Description(const Key& key)
      : x(images(key.of, key.of.image, key.of.in, key.type)),
        weight(weights_as_liked(key.of, key.direction == Direction::weights ? Type::f32 : key.type)),
        forward_weight(weights_as_liked(key.of, key.type)),
        y(images(key.of, key.of.result, key.of.out, key.type)),
        stride(dims(key.of.stride)),
        dilation{dim(key.of.dilation.height) - 1, dim(key.of.dilation.width) - 1},
        padding(dims(key.of.padding)) {
    if (key.bias) bias = {{dim(key.of.out)}, key.type, memory::format_tag::a};
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  }

  memory::desc x, weight, forward_weight, bias, y;
  memory::dims stride, dilation, padding;
  dnnl::primitive_attr attributes;
};

constexpr auto direct = dnnl::algorithm::convolution_direct;

#if DNNL_VERSION_MAJOR >= 3
dnnl::convolution_forward::primitive_desc forward_of(const Description& of, const dnnl::engine& engine) {
  return {engine,
          dnnl::prop_kind::forward_training,
          direct,
          of.x,
          of.forward_weight,
          of.bias,
          of.y,
          of.stride,
          of.dilation,
          of.padding,
          of.padding,
          of.attributes};
}
dnnl::convolution_backward_data::primitive_desc data_of(const Description& of, const dnnl::engine& engine) {
  return {engine,       direct,      of.x,       of.weight,  of.y,
          of.stride,    of.dilation, of.padding, of.padding, forward_of(of, engine),
          of.attributes};
}
dnnl::convolution_backward_weights::primitive_desc weights_of(const Description& of, const dnnl::engine& engine) {
  return {engine,       direct,      of.x,       of.weight,  of.y,
          of.stride,    of.dilation, of.padding, of.padding, forward_of(of, engine),
          of.attributes};
}
#else
dnnl::convolution_forward::primitive_desc forward_of(const Description& of, const dnnl::engine& engine) {
  return {dnnl::convolution_forward::desc(dnnl::prop_kind::forward_training, direct, of.x, of.forward_weight, of.bias,
                                          of.y, of.stride, of.dilation, of.padding, of.padding),
          of.attributes, engine};
}
dnnl::convolution_backward_data::primitive_desc data_of(const Description& of, const dnnl::engine& engine) {
  return {dnnl::convolution_backward_data::desc(direct, of.x, of.weight, of.y, of.stride, of.dilation, of.padding,
                                                of.padding),
          of.attributes, engine, forward_of(of, engine)};
}
dnnl::convolution_backward_weights::primitive_desc weights_of(const Description& of, const dnnl::engine& engine) {
  return {dnnl::convolution_backward_weights::desc(direct, of.x, of.weight, of.y, of.stride, of.dilation, of.padding,
                                                   of.padding),
          of.attributes, engine, forward_of(of, engine)};
}
#endif

// Forward oneDNN prefers kernels that multiply small matrices, the pixels of a line of the result by channels. With
// lines of a few pixels its direct ones, whose weights stand in blocks of 16 × 16 channels, are nearly twice as fast.
// (Kernels with tiles, AMX, are left alone.)
dnnl::convolution_forward::primitive_desc best_forward_of(const Key& key, Description of, const dnnl::engine& engine) {
  constexpr std::uint32_t few_pixels = 4;
  const auto preferred = forward_of(of, engine);
  const std::string_view name = preferred.impl_info_str();
  const bool by_lines = name.starts_with("brgconv:avx512_core") && name.find("amx") == name.npos;
  if (!by_lines || key.of.result.width > few_pixels || key.of.groups > 1) return preferred;
  of.forward_weight = {weight_dims(key.of), key.type, key.type == Type::bf16 ? Tag::OIhw8i16o2i : Tag::OIhw16i16o};
  try {
    const auto direct_one = forward_of(of, engine);
    if (std::string_view(direct_one.impl_info_str()).starts_with("jit")) return direct_one;
  } catch (const dnnl::error&) {  // it has none
  }
  return preferred;
}

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// One of the three, and the reorder between weights as they stand and as it likes them.
class Primitive {
 public:
  Primitive(const Key& key, const dnnl::engine& engine) : engine_(engine) {
    const Description of(key);
    switch (key.direction) {
      case Direction::forward: {
        const auto from = best_forward_of(key, of, engine);
        take(from, from.weights_desc());
        break;
      }
      case Direction::data: {
        const auto from = data_of(of, engine);
        take(from, from.weights_desc());
        break;
      }
      case Direction::weights: {
        const auto from = weights_of(of, engine);
        take(from, from.diff_weights_desc());
        break;
      }
    }
    const memory::desc plain = plain_weights(key.of, key.direction == Direction::weights ? Type::f32 : key.type);
    plain_ = memory(plain, engine, nullptr);
    reorder_ = key.direction == Direction::weights ? dnnl::reorder(liked_, plain_) : dnnl::reorder(plain_, liked_);
    const Type type = key.type;
    x_ = memory(images(key.of, key.of.image, key.of.in, type), engine, nullptr);
    y_ = memory(images(key.of, key.of.result, key.of.out, type), engine, nullptr);
    if (key.bias) bias_ = memory(of.bias, engine, nullptr);
  }

  bool plain_loops() const { return plain_loops_; }
  std::size_t bytes() const { return rounded(liked_.get_desc().get_size()) + rounded(room_.get_desc().get_size()); }

  void forward(dnnl::stream& stream, const void* x, const void* weight, const void* bias, void* y, std::byte* room) {
    use(x, weight, y, room);
    if (bias != nullptr) bias_.set_data_handle(const_cast<void*>(bias));
    reorder_.execute(stream, plain_, liked_);
    std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, liked_}, {DNNL_ARG_DST, y_}, {DNNL_ARG_SCRATCHPAD, room_}};
    if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, bias_);
    run(stream, arguments);
  }
  void data(dnnl::stream& stream, void* dx, const void* weight, const void* dy, std::byte* room) {
    use(dx, weight, dy, room);
    reorder_.execute(stream, plain_, liked_);
    run(stream,
        {{DNNL_ARG_DIFF_SRC, x_}, {DNNL_ARG_WEIGHTS, liked_}, {DNNL_ARG_DIFF_DST, y_}, {DNNL_ARG_SCRATCHPAD, room_}});
  }
  void weight_gradient(dnnl::stream& stream, const void* x, float* dweight, const void* dy, std::byte* room) {
    use(x, dweight, dy, room);
    run(stream,
        {{DNNL_ARG_SRC, x_}, {DNNL_ARG_DIFF_WEIGHTS, liked_}, {DNNL_ARG_DIFF_DST, y_}, {DNNL_ARG_SCRATCHPAD, room_}});
    reorder_.execute(stream, liked_, plain_);
    stream.wait();
  }

 private:
  template <typename From>
  void take(const From& from, const memory::desc& liked) {
    primitive_ = dnnl::primitive(from);
    liked_ = memory(liked, engine_, nullptr);
    room_ = memory(from.scratchpad_desc(), engine_, nullptr);
    plain_loops_ = std::string_view(from.impl_info_str()).starts_with("ref");
  }
  void use(const void* x, const void* weight, const void* y, std::byte* room) {
    x_.set_data_handle(const_cast<void*>(x));
    plain_.set_data_handle(const_cast<void*>(weight));
    y_.set_data_handle(const_cast<void*>(y));
    liked_.set_data_handle(room);
    room_.set_data_handle(room + rounded(liked_.get_desc().get_size()));
  }
  void run(dnnl::stream& stream, const std::unordered_map<int, memory>& arguments) {
    primitive_.execute(stream, arguments);
    stream.wait();
  }

  dnnl::engine engine_;
  dnnl::primitive primitive_;
  dnnl::reorder reorder_;
  memory x_, plain_, liked_, bias_, y_, room_;
  bool plain_loops_ = false;
};

// Each thread has its own.
class Primitives {
 public:
  static Primitives& of_this_thread() {
    thread_local Primitives primitives;
    return primitives;
  }

  Primitive& find(const Key& key) {
    const auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    // A model has some dozens; who has always new ones (images of any size) shall not collect them all.
    constexpr std::size_t most = 1024;
    if (primitives_.size() == most) primitives_.clear();
    return primitives_.try_emplace(key, key, engine_).first->second;
  }
  dnnl::stream& stream() { return stream_; }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Primitive> primitives_;
};

ConvolutionGeometry with_images(ConvolutionGeometry of, std::size_t images) {
  of.images = static_cast<std::uint32_t>(images);
  return of;
}

// Planned memory: what a primitive for the whole batch needs, and the sum of the weights' gradient.
template <Element T>
struct Room {
  explicit Room(const ConvolutionGeometry& of) : for_sum(rounded(of.weights() * sizeof(float))) {
    if (of.images == 0) return;
    const onednn::OneThread one;
    for (const Direction direction : {Direction::forward, Direction::data, Direction::weights}) {
      const Key key{of, direction, type_of<T>(), false};
      for_primitive = std::max(for_primitive, Primitives::of_this_thread().find(key).bytes());
    }
  }
  std::size_t floats() const { return (for_primitive + for_sum) / sizeof(float); }
  float* sum_at(float* scratch) const { return scratch + for_primitive / sizeof(float); }

  std::size_t for_primitive = 0;
  std::size_t for_sum;
};

// Some of a batch's images, and who has them.
struct Share {
  std::size_t index;
  std::size_t first;
  std::size_t images;
  std::byte* planned;  // null: for helpers, which have memory of their own, as for products
  std::size_t planned_bytes;

  // At least so many bytes, aligned to 64.
  std::byte* room(std::size_t bytes) const {
    if (planned != nullptr && bytes <= planned_bytes) return planned;
    thread_local std::vector<std::byte> own;
    if (own.size() < bytes + 64) own.resize(bytes + 64);
    return reinterpret_cast<std::byte*>(rounded(reinterpret_cast<std::uintptr_t>(own.data())));
  }
};

std::size_t shares_of(const ConvolutionGeometry& of) {
  return std::max<std::size_t>(1, parallel::shares_of({.count = of.images}));
}

// function(share) on the threads, each with oneDNN's own kept to one.
template <typename T, typename Function>
void in_shares_of_images(const ConvolutionGeometry& of, const Room<T>& room, float* scratch, const Function& function) {
  const std::size_t shares = shares_of(of);
  parallel::in_parts(shares, [&](std::size_t index, std::size_t worker) {
    const std::size_t first = of.images * index / shares;
    const std::size_t end = of.images * (index + 1) / shares;
    if (first == end) return;
    const onednn::OneThread one;
    function(Share{.index = index,
                   .first = first,
                   .images = end - first,
                   .planned = worker == 0 ? reinterpret_cast<std::byte*>(scratch) : nullptr,
                   .planned_bytes = room.for_primitive});
  });
}

// Returns the calling thread's room for the sums of the shares behind the first, one after the other.
float* more_sums(std::size_t floats) {
  thread_local std::vector<float> sums;
  if (sums.size() < floats) sums.resize(floats);
  return sums.data();
}

// Where the first share's sum is formed: in its place, where that has such numbers and nothing is added to it.
template <Element T>
float* first_sum(const ConvolutionBackwardWork<T>& work, float* planned) {
  if constexpr (std::is_same_v<T, float>) {
    if (!work.accumulate && work.dweight != nullptr) return work.dweight;
  }
  return planned;
}

// The weights' gradient: `sum` is the first share's, the others' are in `more`.
template <Element T>
void add_up(const ConvolutionBackwardWork<T>& work, float* sum, const float* more) {
  const std::size_t count = work.of.weights();
  const std::size_t shares = std::min<std::size_t>(shares_of(work.of), work.of.images);
  const parallel::Shares elements{.count = count, .least = std::size_t{1} << 14, .unit = 64};
  parallel::in_shares(elements, [&](std::size_t begin, std::size_t end, std::size_t) {
    if (shares == 0) std::fill(sum + begin, sum + end, 0.0f);
    for (std::size_t share = 1; share < shares; ++share) {
      const float* const from = more + (share - 1) * count;
      for (std::size_t i = begin; i < end; ++i) sum[i] += from[i];
    }
    for (std::size_t i = begin; work.accumulate && i < end; ++i) sum[i] += load(work.dweight[i]);
    if (static_cast<const void*>(sum) == work.dweight) return;
    const std::size_t part = end - begin;
    store_panel<T>(active_rows(), {sum + begin, part}, {work.dweight + begin, part, 1, part}, nullptr);
  });
}

}  // namespace

template <Element T>
bool convolves() {
  if constexpr (!supported<T>) return false;
  static const bool here = onednn::OneThread::possible() &&
                           onednn::has(std::is_same_v<T, bf16> ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx2);
  return here;
}

// Without AVX-512 the kernels of oneDNN 2.6 give wrong gradients where there are 4 channels (an AMD EPYC with AVX2, a
// ResNet-18 of width 4): there only whole blocks of 8 channels go to it, and images of 1 or 3.
bool is_trusted(const ConvolutionGeometry& of) {
  if (__builtin_cpu_supports("avx512f")) return true;
  const std::size_t in = of.group_in();
  return of.group_out() % 8 == 0 && (in % 8 == 0 || in == 1 || in == 3);
}

template <Element T>
bool has_kernels(const ConvolutionGeometry& of) {
  if constexpr (!supported<T>) return false;
  if (of.images == 0 || !is_trusted(of)) return false;
  const onednn::OneThread one;
  for (const Direction direction : {Direction::forward, Direction::data, Direction::weights}) {
    if (Primitives::of_this_thread().find({of, direction, type_of<T>(), false}).plain_loops()) return false;
  }
  return true;
}

template <Element T>
void forward(const ConvolutionForwardWork<T>& work) {
  if constexpr (!supported<T>) {
    throw InternalError("a convolution that oneDNN does not have");
  } else {
    const Room<T> room(work.of);
    in_shares_of_images(work.of, room, work.scratch, [&](const Share& share) {
      Primitives& primitives = Primitives::of_this_thread();
      const Key key{with_images(work.of, share.images), Direction::forward, type_of<T>(), work.bias != nullptr};
      Primitive& primitive = primitives.find(key);
      primitive.forward(primitives.stream(), work.x + share.first * work.of.x_of_image(), work.weight, work.bias,
                        work.y + share.first * work.of.y_of_image(), share.room(primitive.bytes()));
    });
  }
}

template <Element T>
void backward(const ConvolutionBackwardWork<T>& work) {
  if constexpr (!supported<T>) {
    throw InternalError("a convolution that oneDNN does not have");
  } else {
    const Room<T> room(work.of);
    const std::size_t count = work.of.weights();
    float* const sum = first_sum(work, room.sum_at(work.scratch));
    float* const more = work.dweight == nullptr ? nullptr : more_sums((shares_of(work.of) - 1) * count);
    in_shares_of_images(work.of, room, work.scratch, [&](const Share& share) {
      Primitives& primitives = Primitives::of_this_thread();
      const ConvolutionGeometry part = with_images(work.of, share.images);
      const T* const dy = work.dy + share.first * work.of.y_of_image();
      if (work.dweight != nullptr) {
        Primitive& primitive = primitives.find({part, Direction::weights, type_of<T>(), false});
        primitive.weight_gradient(primitives.stream(), work.x + share.first * work.of.x_of_image(),
                                  share.index == 0 ? sum : more + (share.index - 1) * count, dy,
                                  share.room(primitive.bytes()));
      }
      if (work.dx != nullptr) {
        Primitive& primitive = primitives.find({part, Direction::data, type_of<T>(), false});
        primitive.data(primitives.stream(), work.dx + share.first * work.of.x_of_image(), work.weight, dy,
                       share.room(primitive.bytes()));
      }
    });
    if (work.dweight != nullptr) add_up(work, sum, more);
  }
}

template <Element T>
std::size_t scratch(const ConvolutionGeometry& of) {
  if constexpr (!supported<T>) return 0;
  return Room<T>(of).floats();
}

#define TESSERA_CONVOLUTION_BY_ONEDNN(T)                     \
  template bool convolves<T>();                              \
  template bool has_kernels<T>(const ConvolutionGeometry&);  \
  template void forward(const ConvolutionForwardWork<T>&);   \
  template void backward(const ConvolutionBackwardWork<T>&); \
  template std::size_t scratch<T>(const ConvolutionGeometry&);
TESSERA_FOR_EACH_ELEMENT(TESSERA_CONVOLUTION_BY_ONEDNN)

}  // namespace tessera::vision::convolutions::by_onednn
