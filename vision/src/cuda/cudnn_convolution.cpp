// Convolutions by cuDNN, as cudnn_attention.cpp has attention. Graphs are kept by shape, thread and device.
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "nn/src/cuda/cudnn_runtime.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/cuda/library_convolution.hpp"

namespace tessera::vision::cuda {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Uid : std::int64_t { images = 1, weights, results };

std::int64_t extent(std::size_t count) { return static_cast<std::int64_t>(count); }
std::vector<std::int64_t> extents(Pair32 of) { return {extent(of.height), extent(of.width)}; }

fe::DataType_t type_of(Format format) {
  if (format == Format::bf16) return fe::DataType_t::BFLOAT16;
  if (format == Format::fp16) return fe::DataType_t::HALF;
  if (format == Format::fp32) return fe::DataType_t::FLOAT;
  throw InternalError("a convolution of doubles was asked of cuDNN");
}

std::string_view in_words(ConvolutionDirection direction) {
  if (direction == ConvolutionDirection::forward) return "forward convolution";
  return direction == ConvolutionDirection::image_gradient ? "gradient of the images" : "gradient of the weights";
}

void require(fe::error_t status) {
  if (!status.is_good()) throw Error("cuDNN: " + status.get_message());
}

// The graph of one operation and its plan, or why there is none.
class PreparedConvolution {
 public:
  // The last is in place of a handle where tests want a plan without a device.
  PreparedConvolution(cudnnHandle_t handle, const LibraryConvolution& a,
                      const std::shared_ptr<const fe::DeviceProperties>& described = nullptr) {
    graph_.set_device_properties(described);
    graph_.set_io_data_type(type_of(a.format))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    describe(a);
    require(graph_.validate());
    require(graph_.build_operation_graph(handle));
    require(graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}));
    choose(a);
    require(graph_.check_support());
    require(graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
  }

  void run(cudnnHandle_t handle, const LibraryConvolution& a) {
    places_[Uid::images] = const_cast<void*>(a.images);
    places_[Uid::weights] = const_cast<void*>(a.weights);
    places_[Uid::results] = const_cast<void*>(a.results);
    require(graph_.execute(handle, places_, a.workspace.data));
  }

 private:
  // The same bits each time, nothing below the precision of the operands, and no more workspace than there is.
  void choose(const LibraryConvolution& a) {
    using Note = fe::NumericalNote_t;
    std::vector<Note> not_wanted{Note::NONDETERMINISTIC,
                                 Note::DOWN_CONVERT_INPUTS,
                                 Note::REDUCED_PRECISION_REDUCTION,
                                 Note::FFT,
                                 Note::WINOGRAD,
                                 Note::WINOGRAD_TILE_4x4,
                                 Note::WINOGRAD_TILE_6x6,
                                 Note::WINOGRAD_TILE_13x13};
    if (a.format == Format::fp32 && !a.tf32) not_wanted.push_back(Note::TENSOR_CORE);
    graph_.deselect_numeric_notes(not_wanted);
    graph_.deselect_workspace_greater_than(extent(a.workspace.bytes));
  }

  // Dimensions are told in cuDNN's order, strides say that channels stand side by side.
  static Tensor lay_out(const Tensor& tensor, Uid uid, std::size_t count, std::size_t channels, Pair32 size) {
    const std::int64_t line = extent(channels * size.width);
    tensor->set_uid(uid)
        .set_dim({extent(count), extent(channels), extent(size.height), extent(size.width)})
        .set_stride({line * extent(size.height), 1, line, extent(channels)});
    return tensor;
  }
  static Tensor lay_out(const Tensor& tensor, Uid uid, const ConvolutionGeometry& of) {
    if (uid == Uid::weights) return lay_out(tensor, uid, of.out, of.group_in(), of.kernel);
    if (uid == Uid::images) return lay_out(tensor, uid, of.images, of.in, of.image);
    return lay_out(tensor, uid, of.images, of.out, of.result);
  }
  static Tensor read(Uid uid, const LibraryConvolution& a) {
    const auto made = std::make_shared<fe::graph::Tensor_attributes>();
    made->set_data_type(type_of(a.format));
    return lay_out(made, uid, a.of);
  }
  static void write(const Tensor& tensor, Uid uid, const LibraryConvolution& a) {
    lay_out(tensor, uid, a.of)->set_output(true).set_data_type(type_of(a.format));
  }

  template <typename Options>
  static Options options_of(const ConvolutionGeometry& of) {
    Options options;
    options.set_padding(extents(of.padding)).set_stride(extents(of.stride)).set_dilation(extents(of.dilation));
    return options;
  }

  void describe(const LibraryConvolution& a) {
    switch (a.direction) {
      case ConvolutionDirection::forward: {
        const auto options = options_of<fe::graph::Conv_fprop_attributes>(a.of);
        write(graph_.conv_fprop(read(Uid::images, a), read(Uid::weights, a), options), Uid::results, a);
        break;
      }
      case ConvolutionDirection::image_gradient: {
        const auto options = options_of<fe::graph::Conv_dgrad_attributes>(a.of);
        write(graph_.conv_dgrad(read(Uid::results, a), read(Uid::weights, a), options), Uid::images, a);
        break;
      }
      case ConvolutionDirection::weight_gradient: {
        const auto options = options_of<fe::graph::Conv_wgrad_attributes>(a.of);
        write(graph_.conv_wgrad(read(Uid::results, a), read(Uid::images, a), options), Uid::weights, a);
        break;
      }
    }
  }

  fe::graph::Graph graph_;
  std::unordered_map<std::int64_t, void*> places_;
};

// Null where there is no kernel.
std::unique_ptr<PreparedConvolution> prepare(const LibraryConvolution& a) {
  try {
    return std::make_unique<PreparedConvolution>(cudnn::handle(), a);
  } catch (const std::exception& error) {
    const ConvolutionGeometry& of = a.of;
    fmt::print(stderr,
               "tessera: {} computes no {} of {} channels to {} in {} groups, {} x {}, over {} images of {} x {}, "
               "products do: {}\n",
               cudnn::runtime().in_words, in_words(a.direction), of.in, of.out, of.groups, of.kernel.height,
               of.kernel.width, of.images, of.image.height, of.image.width, error.what());
    return nullptr;
  }
}

// All but addresses.
using ConvolutionKey = std::tuple<int, Format, bool, ConvolutionDirection, ConvolutionGeometry, std::size_t>;

PreparedConvolution* prepared(const LibraryConvolution& a) {
  thread_local std::map<ConvolutionKey, std::unique_ptr<PreparedConvolution>> kept;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) throw Error("cudaGetDevice failed");
  const ConvolutionKey key{device, a.format, a.tf32, a.direction, a.of, a.workspace.bytes};
  const auto found = kept.find(key);
  if (found != kept.end()) return found->second.get();
  return kept.emplace(key, prepare(a)).first->second.get();
}

bool run(void* native, const LibraryConvolution& a) {
  PreparedConvolution* const found = prepared(a);
  if (found != nullptr) found->run(cudnn::handle_on(native), a);
  return found != nullptr;
}

}  // namespace

const ConvolutionLibrary& convolution_library() {
  static const ConvolutionLibrary found{
      .missing = cudnn::runtime().missing, .in_words = cudnn::runtime().in_words, .run = run};
  return found;
}

}  // namespace tessera::vision::cuda
