// Releases 2 and 3 of oneDNN. Each thread keeps the primitives of the products that it has met, because making one
// compiles code.
#include "src/products/onednn.hpp"

#include <fmt/format.h>

#include <dnnl.hpp>
#include <map>
#include <vector>

#include "src/onednn_runtime.hpp"

namespace tessera::nn::onednn {

namespace {

using dnnl::memory;

// A primitive is made for a key.
struct Key {
  explicit Key(const Gemm<bf16>& of)
      : m(of.m),
        n(of.n),
        k(of.k),
        a(of.a.stride),
        b(of.b.stride),
        c(of.c_stride),
        form((of.a.transposed ? 1 : 0) + (of.b.transposed ? 2 : 0) + (of.add ? 4 : 0)) {}
  std::size_t m, n, k;
  std::size_t a, b, c;  // strides
  int form;
  auto operator<=>(const Key&) const = default;
};

memory::dim dim(std::size_t extent) { return static_cast<memory::dim>(extent); }

memory::desc matrix(std::size_t rows, std::size_t columns, bool transposed, std::size_t stride) {
  const memory::dims strides = transposed ? memory::dims{1, dim(stride)} : memory::dims{dim(stride), 1};
  return {{dim(rows), dim(columns)}, memory::data_type::bf16, strides};
}

dnnl::primitive_attr attributes(bool add) {
  dnnl::primitive_attr result;
  result.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops after;
    after.append_sum(1.0f);
    result.set_post_ops(after);
  }
  return result;
}

dnnl::matmul::primitive_desc describe(const Gemm<bf16>& of, const dnnl::engine& engine) {
  const memory::desc a = matrix(of.m, of.k, of.a.transposed, of.a.stride);
  const memory::desc b = matrix(of.k, of.n, of.b.transposed, of.b.stride);
  const memory::desc c = matrix(of.m, of.n, false, of.c_stride);
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c, attributes(of.add)};
#else
  return {dnnl::matmul::desc(a, b, c), attributes(of.add), engine};
#endif
}

class Primitive {
 public:
  Primitive(const Gemm<bf16>& of, const dnnl::engine& engine) : Primitive(describe(of, engine), engine) {}

  std::size_t scratch() const { return scratch_.get_desc().get_size(); }

  void run(dnnl::stream& stream, const Gemm<bf16>& of, void* scratch) {
    a_.set_data_handle(const_cast<bf16*>(of.a.data));
    b_.set_data_handle(const_cast<bf16*>(of.b.data));
    c_.set_data_handle(of.c);
    scratch_.set_data_handle(scratch);
    matmul_.execute(stream, arguments_);
    stream.wait();
  }

 private:
  Primitive(const dnnl::matmul::primitive_desc& from, const dnnl::engine& engine)
      : a_(from.src_desc(), engine, nullptr),
        b_(from.weights_desc(), engine, nullptr),
        c_(from.dst_desc(), engine, nullptr),
        scratch_(from.scratchpad_desc(), engine, nullptr),
        matmul_(from),
        arguments_({{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}, {DNNL_ARG_SCRATCHPAD, scratch_}}) {}

  memory a_, b_, c_, scratch_;
  dnnl::matmul matmul_;
  std::unordered_map<int, memory> arguments_;
};

// Each thread has its own.
class Products {
 public:
  void multiply(const Gemm<bf16>& of) {
    const OneThread one;
    Primitive& primitive = find(of);
    if (primitive.scratch() > scratch_.size()) scratch_.resize(primitive.scratch());
    primitive.run(stream_, of, scratch_.data());
  }

 private:
  // A model has some dozen products; who has always new ones (sequences of any length) shall not collect them all.
  static constexpr std::size_t most_primitives = 512;

  Primitive& find(const Gemm<bf16>& of) {
    const Key key(of);
    const auto found = primitives_.find(key);
    if (found != primitives_.end()) return found->second;
    if (primitives_.size() == most_primitives) primitives_.clear();
    return primitives_.try_emplace(key, of, engine_).first->second;
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Key, Primitive> primitives_;
  std::vector<std::byte> scratch_;
};

}  // namespace

bool available() {
  static const bool here = OneThread::possible() && has(dnnl_cpu_isa_avx512_core_bf16);
  return here;
}

bool has_tiles() { return available() && has(dnnl_cpu_isa_avx512_core_amx); }

void multiply(const Gemm<bf16>& product) {
  thread_local Products products;
  products.multiply(product);
}

std::string in_words() {
  const dnnl_version_t& version = *dnnl::version();
  const char* const set = has_tiles()                     ? "AMX"
                          : available()                   ? "AVX512_BF16"
                          : has(dnnl_cpu_isa_avx512_core) ? "AVX-512"
                                                          : "AVX2";
  return fmt::format("oneDNN {}.{}.{} with {}", version.major, version.minor, version.patch, set);
}

}  // namespace tessera::nn::onednn
