// Products through cuBLASLt, which is loaded when the first CUDA layer runs: programs start on machines without it.
// Each thread keeps what a shape needs (descriptors, the algorithm), so that a running step allocates nothing.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "src/cuda/product.hpp"
#include "src/cuda/product_choice.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn::cuda {

namespace {

constexpr std::array<const char*, 2> libraries =
    CUBLAS_VER_MAJOR >= 13 ? std::array<const char*, 2>{"libcublasLt.so.13", "libcublasLt.so.12"}
                           : std::array<const char*, 2>{"libcublasLt.so.12", "libcublasLt.so.13"};

// The functions that are used, under their own names.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) make_operation;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;
  decltype(&cublasLtGetStatusString) text_of;
  decltype(&cublasLtGetVersion) version;
  std::string missing;  // why it cannot be used; empty when it can
};

template <typename Function>
void find(Library& library, void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  if (function == nullptr) library.missing = fmt::format("the cuBLASLt that was found has no {}", name);
}

Library load() {
  Library library{};
  void* handle = nullptr;
  std::string reasons;
  for (const char* name : libraries) {
    handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", ::dlerror());
  }
  if (handle == nullptr) {
    library.missing =
        fmt::format("cuBLASLt was not found ({}). Install it, or add its folder to LD_LIBRARY_PATH", reasons);
    return library;
  }
  find(library, handle, "cublasLtCreate", library.create);
  find(library, handle, "cublasLtDestroy", library.destroy);
  find(library, handle, "cublasLtMatmulDescCreate", library.make_operation);
  find(library, handle, "cublasLtMatmulDescDestroy", library.destroy_operation);
  find(library, handle, "cublasLtMatmulDescSetAttribute", library.set_operation);
  find(library, handle, "cublasLtMatrixLayoutCreate", library.make_layout);
  find(library, handle, "cublasLtMatrixLayoutSetAttribute", library.set_layout);
  find(library, handle, "cublasLtMatrixLayoutDestroy", library.destroy_layout);
  find(library, handle, "cublasLtMatmulPreferenceCreate", library.make_preference);
  find(library, handle, "cublasLtMatmulPreferenceDestroy", library.destroy_preference);
  find(library, handle, "cublasLtMatmulPreferenceSetAttribute", library.set_preference);
  find(library, handle, "cublasLtMatmulAlgoGetHeuristic", library.choose);
  find(library, handle, "cublasLtMatmul", library.multiply);
  find(library, handle, "cublasLtGetStatusString", library.text_of);
  find(library, handle, "cublasLtGetVersion", library.version);
  return library;
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(fmt::format("{} failed: {}", call, library().text_of(status)));
}

cudaDataType_t type_of(Format format) {
  switch (format) {
    case Format::fp32: return CUDA_R_32F;
    case Format::bf16: return CUDA_R_16BF;
    case Format::fp16: return CUDA_R_16F;
    case Format::fp64: break;
  }
  throw InternalError("a product of doubles was asked for on a CUDA device");
}

cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu_bias: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::gelu_gradient: return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::bias_gradient: return CUBLASLT_EPILOGUE_BGRADB;
  }
  throw InternalError("a product with an unknown epilogue");
}

bool has_vector(Epilogue epilogue) {
  return epilogue == Epilogue::bias || epilogue == Epilogue::gelu_bias || epilogue == Epilogue::bias_gradient;
}
bool has_aux(Epilogue epilogue) { return epilogue == Epilogue::gelu_bias || epilogue == Epilogue::gelu_gradient; }

// cuBLASLt's own rule: rows of what GELU keeps begin on eight elements.
bool aux_fits(const Product& product) {
  return product.aux.leading % 8 == 0 && reinterpret_cast<std::uintptr_t>(product.aux.data) % 16 == 0;
}

bool adds(const Product& product) { return product.added.data != nullptr; }
bool adds_in_place(const Product& product) { return adds(product) && product.added.data == product.d.data; }
// cuBLASLt wants to know of a matrix that is added in any case.
const ColumnMajor& added_or_d(const Product& product) { return adds(product) ? product.added : product.d; }

Format format_of_d(const Product& product) { return product.d_in_fp32 ? Format::fp32 : product.format; }

// Everything that the choice of an algorithm depends on.
using Key = std::array<std::uint64_t, 22>;

// One number for all of them, four bits each.
std::uint64_t alignments_of(std::initializer_list<const void*> parts) {
  std::uint64_t all = 0;
  for (const void* part : parts) all = all << 4 | static_cast<unsigned>(std::countr_zero(alignment_of(part)));
  return all;
}

Key key_of(const Product& p, int device) {
  return {static_cast<std::uint64_t>(device),
          static_cast<std::uint64_t>(p.format),
          static_cast<std::uint64_t>(p.epilogue),
          std::uint64_t{p.tf32} | std::uint64_t{adds(p)} << 1 | std::uint64_t{adds_in_place(p)} << 2 |
              std::uint64_t{p.a.transposed} << 3 | std::uint64_t{p.b.transposed} << 4 | std::uint64_t{p.d_in_fp32} << 5,
          p.a.rows,
          p.a.columns,
          p.a.leading,
          p.b.rows,
          p.b.columns,
          p.b.leading,
          p.d.rows,
          p.d.columns,
          p.d.leading,
          p.added.leading,
          p.aux.leading,
          alignments_of({p.a.data, p.b.data, p.added.data, p.d.data, p.aux.data, p.vector, p.workspace.data}),
          p.workspace.bytes,
          p.batch.count,
          p.batch.most,
          p.batch.a_step,
          p.batch.b_step,
          p.batch.d_step};
}

template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

template <typename Value>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t which, const Value& value) {
  check(library().set_operation(operation, which, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}
template <typename Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which, const Value& value) {
  check(library().set_preference(preference, which, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
}

template <typename Value>
void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which, const Value& value) {
  check(library().set_layout(layout, which, &value, sizeof value), "cublasLtMatrixLayoutSetAttribute");
}

Owned<cublasLtMatmulDesc_t> operation_of(const Product& p) {
  const cublasComputeType_t compute = p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t made = nullptr;
  check(library().make_operation(&made, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Owned<cublasLtMatmulDesc_t> operation(made, library().destroy_operation);
  const auto transposition = [](const ColumnMajor& of) { return of.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(made, CUBLASLT_MATMUL_DESC_TRANSA, transposition(p.a));
  set(made, CUBLASLT_MATMUL_DESC_TRANSB, transposition(p.b));
  set(made, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p.epilogue));
  if (has_aux(p.epilogue)) set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<std::int64_t>(p.aux.leading));
  return operation;
}

Owned<cublasLtMatrixLayout_t> layout_of(Format format, const ColumnMajor& of, std::size_t step) {
  cublasLtMatrixLayout_t made = nullptr;
  check(library().make_layout(&made, type_of(format), of.rows, of.columns, static_cast<std::int64_t>(of.leading)),
        "cublasLtMatrixLayoutCreate");
  Owned<cublasLtMatrixLayout_t> layout(made, library().destroy_layout);
  if (step > 0) set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, static_cast<std::int64_t>(step));
  return layout;
}

// The pointers that are part of a product's description.
void set_pointers(cublasLtMatmulDesc_t operation, const Product& p) {
  if (has_vector(p.epilogue)) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.vector);
  if (has_aux(p.epilogue)) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux.data);
}

void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw Error(fmt::format("{} failed: {}", call, cudaGetErrorString(status)));
}

// Measures a few runs of what `enqueue` puts on a stream, and takes the shortest of several attempts. Waits for the
// device.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }

  template <typename Enqueue>
  double seconds(Enqueue enqueue) {
    constexpr int attempts = 3;
    constexpr int runs = 4;
    enqueue();  // loads the kernel
    float shortest = std::numeric_limits<float>::infinity();
    for (int attempt = 0; attempt < attempts; ++attempt) {
      check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
      for (int run = 0; run < runs; ++run) enqueue();
      check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
      float milliseconds = 0.0f;
      check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
      shortest = std::min(shortest, milliseconds);
    }
    return static_cast<double>(shortest) / 1e3 / runs;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// A product of one shape, ready to run: the algorithm, or none.
class Prepared {
 public:
  Prepared(cublasLtHandle_t handle, cudaStream_t stream, const Product& p)
      : operation_(operation_of(p)),
        a_(layout_of(p.format, p.a, p.batch.a_step)),
        b_(layout_of(p.format, p.b, p.batch.b_step)),
        added_(layout_of(format_of_d(p), added_or_d(p), p.batch.d_step)),
        d_(layout_of(format_of_d(p), p.d, p.batch.d_step)) {
    if (has_aux(p.epilogue) && !aux_fits(p)) return;
    set_pointers(operation_.get(), p);
    choose(handle, stream, p);
  }

  bool possible() const { return possible_; }

  void run(cublasLtHandle_t handle, cudaStream_t stream, const Product& p) {
    set_pointers(operation_.get(), p);
    check(run(handle, stream, p, algorithm_), "cublasLtMatmul");
  }

 private:
  using Proposals = std::array<cublasLtMatmulHeuristicResult_t, ProductChoices::most>;

  cublasStatus_t run(cublasLtHandle_t handle, cudaStream_t stream, const Product& p,
                     const cublasLtMatmulAlgo_t& algorithm) {
    const float one = 1.0f;
    const float beta = adds(p) ? 1.0f : 0.0f;
    return library().multiply(handle, operation_.get(), &one, p.a.data, a_.get(), p.b.data, b_.get(), &beta,
                              added_or_d(p).data, added_.get(), const_cast<void*>(p.d.data), d_.get(), &algorithm,
                              p.workspace.data, p.workspace.bytes, stream);
  }

  void set_batch(std::size_t count) {
    for (const auto* layout : {&a_, &b_, &added_, &d_}) {
      set(layout->get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(count));
    }
  }

  // A product that adds to its own result cannot run twice, so it has the first proposal.
  void choose(cublasLtHandle_t handle, cudaStream_t stream, const Product& p) {
    ProductChoices& choices = product_choices();
    Proposals proposals{};
    const std::size_t wanted = adds_in_place(p) ? 1 : choices.wanted();
    if (p.batch.most > 1) set_batch(p.batch.most);
    const std::size_t count = propose(handle, p, {proposals.data(), wanted});
    if (p.batch.most > 1) set_batch(p.batch.count);
    possible_ = count > 0;
    if (!possible_) return;
    const std::size_t chosen = choices.choose(in_words(p), count, [&](std::size_t i) {
      cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
      const double seconds = Stopwatch(stream).seconds([&] {
        if (status == CUBLAS_STATUS_SUCCESS) status = run(handle, stream, p, proposals[i].algo);
      });
      return status == CUBLAS_STATUS_SUCCESS ? seconds : std::numeric_limits<double>::infinity();
    });
    algorithm_ = proposals[chosen].algo;
  }

  // How many there are. Partial sums stay in fp32: what is cut along its depth must not be rounded in between.
  std::size_t propose(cublasLtHandle_t handle, const Product& p, std::span<cublasLtMatmulHeuristicResult_t> results) {
    cublasLtMatmulPreference_t made = nullptr;
    check(library().make_preference(&made), "cublasLtMatmulPreferenceCreate");
    const Owned<cublasLtMatmulPreference_t> preference(made, library().destroy_preference);
    set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, p.workspace.bytes);
    set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.a.data));
    set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.b.data));
    set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(added_or_d(p).data));
    set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.d.data));
    int count = 0;
    const cublasStatus_t status = library().choose(handle, operation_.get(), a_.get(), b_.get(), added_.get(), d_.get(),
                                                   made, static_cast<int>(results.size()), results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return 0;  // there is no algorithm; all else is a fault
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    const auto runs = [](const auto& result) { return result.state == CUBLAS_STATUS_SUCCESS; };
    const auto end = std::stable_partition(results.begin(), results.begin() + count, runs);
    return static_cast<std::size_t>(end - results.begin());
  }

  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatrixLayout_t> a_;
  Owned<cublasLtMatrixLayout_t> b_;
  Owned<cublasLtMatrixLayout_t> added_;
  Owned<cublasLtMatrixLayout_t> d_;
  cublasLtMatmulAlgo_t algorithm_{};
  bool possible_ = false;
};

// One thread has prepared these, for all devices that it issues to.
class Products {
 public:
  cublasLtHandle_t handle(int device) {
    const auto found = handles_.find(device);
    if (found != handles_.end()) return found->second.get();
    cublasLtHandle_t made = nullptr;
    check(library().create(&made), "cublasLtCreate");
    return handles_.emplace(device, Owned<cublasLtHandle_t>(made, library().destroy)).first->second.get();
  }

  Prepared& prepared(int device, cudaStream_t stream, const Product& product) {
    const Key key = key_of(product, device);
    const auto found = prepared_.find(key);
    if (found != prepared_.end()) return found->second;
    return prepared_.emplace(key, Prepared(handle(device), stream, product)).first->second;
  }

 private:
  std::map<int, Owned<cublasLtHandle_t>> handles_;
  std::map<Key, Prepared> prepared_;
};

int current_device() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) throw Error("cudaGetDevice failed");
  return device;
}

}  // namespace

void require_products() {
  product_choices();
  if (library().missing.empty()) return;
  throw UnavailableError("layers on CUDA devices need cuBLASLt: " + library().missing);
}

std::string products_in_words() {
  if (!library().missing.empty()) return "nowhere: " + library().missing;
  const std::size_t version = library().version();
  return fmt::format("by cuBLASLt {}.{}.{}, {}", version / 10'000, version / 100 % 100, version % 100,
                     product_choices().in_words());
}

bool multiply(void* native, const Product& product) {
  thread_local Products products;
  require_products();
  const int device = current_device();
  const auto stream = static_cast<cudaStream_t>(native);
  Prepared& prepared = products.prepared(device, stream, product);
  if (!prepared.possible()) {
    if (product.epilogue != Epilogue::none) return false;
    throw Error(fmt::format("cuBLASLt has no algorithm for a product of {} x {} over {} on cuda:{}", product.d.columns,
                            product.d.rows, product.a.transposed ? product.a.rows : product.a.columns, device));
  }
  prepared.run(products.handle(device), stream, product);
  return true;
}

}  // namespace tessera::nn::cuda
