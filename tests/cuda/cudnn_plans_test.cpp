// cuDNN has a plan for each of our graphs on an H100, which it says without a device: from a device's properties in
// JSON (cuDNN 9.8 and later). h100.json has what NVIDIA publishes of one, under the names that cuDNN 9.19 reads; no
// device has written it. A machine with one prints its own (--describe), and TESSERA_CUDNN_DEVICE names another file.
#define DOCTEST_CONFIG_IMPLEMENT
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "nn/src/cuda/cudnn_attention.cpp"
#include "vision/src/cuda/cudnn_convolution.cpp"

using namespace tessera;

namespace {

namespace fe = cudnn_frontend;
using Bytes = std::vector<std::uint8_t>;
using Described = std::shared_ptr<const fe::DeviceProperties>;

constexpr int skipped = 77;
std::string file_of_device;

void require(fe::error_t status) {
  if (!status.is_good()) throw Error(status.get_message());
}

Described described() {
  std::ifstream file(file_of_device);
  const Bytes text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto device = std::make_shared<fe::DeviceProperties>();
  require(device->deserialize(text));
  return device;
}

int print_device() {
  fe::DeviceProperties device;
  require(device.set_device_id(0).build());
  Bytes text;
  require(device.serialize(text));
  fmt::print("{}\n", std::string(text.begin(), text.end()));
  return 0;
}

nn::cuda::FusedAttention attention_of(nn::Format format, bool backward, std::size_t rows, std::size_t head_dim) {
  static float statistics = 0.0f;
  constexpr std::size_t heads = 12;
  const std::size_t dim = heads * head_dim;
  const auto of_rows = [&](std::size_t parts) {
    return nn::cuda::Heads{.sequence_stride = rows * parts * dim, .head_stride = head_dim, .row_stride = parts * dim};
  };
  nn::cuda::FusedAttention a{.format = format,
                             .backward = backward,
                             .sequences = 4,
                             .heads = heads,
                             .rows = rows,
                             .head_dim = head_dim,
                             .scale = 0.125f,
                             .q = of_rows(3),
                             .k = of_rows(3),
                             .v = of_rows(3),
                             .out = of_rows(1),
                             .statistics = &statistics};
  if (backward) a.dout = of_rows(1), a.dq = a.dk = a.dv = of_rows(3);
  return a;
}

}  // namespace

TEST_CASE("every attention that is asked of cuDNN has a plan") {
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) {
    MESSAGE("not looked at: cuDNN compiles these kernels and has the driver load them, which is not here");
    return;
  }
  const Described device = described();
  for (const nn::Format format : {nn::Format::bf16, nn::Format::fp16}) {
    for (const bool backward : {false, true}) {
      for (const std::size_t rows : {64u, 130u, 1024u, 4096u}) {
        for (const std::size_t head_dim : {64u, 72u, 128u}) {
          CAPTURE(static_cast<int>(format));
          CAPTURE(backward);
          CAPTURE(rows);
          CAPTURE(head_dim);
          const nn::cuda::FusedAttention a = attention_of(format, backward, rows, head_dim);
          std::size_t bytes = 0;
          CHECK_NOTHROW(bytes = nn::cuda::Prepared(nullptr, a, device).workspace_bytes());
          // Backward has the gradients of queries in fp32, and sums of rows (attention_choice.cpp).
          const std::size_t of_head = rows * (head_dim + 1) * sizeof(float);
          CHECK(bytes <= (backward ? 2 * a.sequences * a.heads * of_head : 0) + (std::size_t{16} << 20));
        }
      }
    }
  }
}

TEST_CASE("every convolution of a ResNet has a plan in the workspace that it gets") {
  using vision::cuda::ConvolutionDirection;
  const Described device = described();
  struct Layer {
    std::uint32_t in, out, size, kernel, stride;
  };
  for (const nn::Format format : {nn::Format::bf16, nn::Format::fp16, nn::Format::fp32}) {
    for (const Layer& layer : {Layer{64, 64, 56, 3, 1}, Layer{64, 128, 56, 3, 2}, Layer{64, 128, 56, 1, 2},
                               Layer{512, 512, 7, 3, 1}, Layer{8, 64, 224, 7, 2}}) {
      for (const auto direction : {ConvolutionDirection::forward, ConvolutionDirection::image_gradient,
                                   ConvolutionDirection::weight_gradient}) {
        CAPTURE(static_cast<int>(format));
        CAPTURE(static_cast<int>(direction));
        CAPTURE(layer.in);
        CAPTURE(layer.out);
        CAPTURE(layer.kernel);
        const std::uint32_t padding = layer.kernel / 2;
        const std::uint32_t result = (layer.size + 2 * padding - layer.kernel) / layer.stride + 1;
        const vision::cuda::LibraryConvolution a{.format = format,
                                                 .tf32 = false,
                                                 .direction = direction,
                                                 .of = {.images = 32,
                                                        .image = {layer.size, layer.size},
                                                        .result = {result, result},
                                                        .in = layer.in,
                                                        .out = layer.out,
                                                        .kernel = {layer.kernel, layer.kernel},
                                                        .stride = {layer.stride, layer.stride},
                                                        .padding = {padding, padding},
                                                        .dilation = {1, 1},
                                                        .groups = 1},
                                                 .images = nullptr,
                                                 .weights = nullptr,
                                                 .results = nullptr,
                                                 .workspace = {.bytes = std::size_t{32} << 20}};
        CHECK_NOTHROW(vision::cuda::PreparedConvolution(nullptr, a, device));
      }
    }
  }
}

int main(int argc, char** argv) {
  const std::string& missing = nn::cuda::cudnn::runtime().missing;
  if (!missing.empty()) return fmt::print("skipped: {}\n", missing), skipped;
  if (argc > 1 && std::string(argv[1]) == "--describe") {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) return fmt::print("skipped: there is no CUDA device\n"), skipped;
    return print_device();
  }
  const char* const wished = std::getenv("TESSERA_CUDNN_DEVICE");
  file_of_device = wished != nullptr ? wished : argc > 1 ? argv[1] : "";
  if (!std::filesystem::exists(file_of_device)) {
    return fmt::print("skipped: no file has a device's properties ({})\n", file_of_device), skipped;
  }
  return doctest::Context(1, argv).run();
}
