// oneDNN's matrix product as a primitive with plain strides: releases 2 and 3.
#include "products/contestants.hpp"

#include <fmt/format.h>
#include <dnnl.hpp>
#include <memory>

// OpenMP declares it so; clang finds its header only where a runtime of its own is installed.
extern "C" void omp_set_num_threads(int threads);

namespace bench {

namespace {

using dnnl::memory;

memory::data_type type_of(tessera::DType type) {
  if (type == tessera::DType::fp32) return memory::data_type::f32;
  return type == tessera::DType::bf16 ? memory::data_type::bf16 : memory::data_type::f16;
}

memory::dim dim(std::size_t extent) { return static_cast<memory::dim>(extent); }

memory::desc matrix(tessera::DType type, std::size_t rows, std::size_t columns, const Factor& factor) {
  return {{dim(rows), dim(columns)}, type_of(type), {dim(factor.row_stride), dim(factor.column_stride)}};
}

dnnl::matmul::primitive_desc matmul_of(const memory::desc& a, const memory::desc& b, const memory::desc& c,
                                       const dnnl::engine& engine) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, a, b, c};
#else
  return {dnnl::matmul::desc(a, b, c), engine};
#endif
}

// A primitive on memory that it does not own.
struct Matmul {
  explicit Matmul(const PlainProduct& of)
      : engine(dnnl::engine::kind::cpu, 0),
        stream(engine),
        a(matrix(of.type, of.m, of.k, of.a), engine, of.a.data),
        b(matrix(of.type, of.k, of.n, of.b), engine, of.b.data),
        c(matrix(of.type, of.m, of.n, {of.c, of.n, 1}), engine, of.c),
        matmul(matmul_of(a.get_desc(), b.get_desc(), c.get_desc(), engine)) {}

  void run() {
    matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    stream.wait();
  }

  dnnl::engine engine;
  dnnl::stream stream;
  memory a;
  memory b;
  memory c;
  dnnl::matmul matmul;
};

}  // namespace

std::optional<std::function<void()>> onednn_product(const PlainProduct& product, int threads) {
  omp_set_num_threads(threads);
  try {
    const auto matmul = std::make_shared<Matmul>(product);
    return [matmul] { matmul->run(); };
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return std::nullopt;
    throw;
  }
}

std::string onednn_in_words() {
  const dnnl_version_t& version = *dnnl::version();
  return fmt::format("oneDNN {}.{}.{}, instruction set {:#x}", version.major, version.minor, version.patch,
                     static_cast<int>(dnnl::get_effective_cpu_isa()));
}

}  // namespace bench
