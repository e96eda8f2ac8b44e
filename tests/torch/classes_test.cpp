// Every class of torch::nn trains sharded as it does plainly: a row each. On one rank its first outputs and gradients
// have plain libtorch's bits; on several, which all have the same batch, everything is near.
#include "networks.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>

namespace classes_test {

namespace nn = torch::nn;
using torch::Tensor;
using Apply = std::function<Tensor(const Tensor&)>;

// ---- what a class gives, as one tensor ----

Tensor joined(const Tensor& tensor) { return tensor.is_floating_point() ? tensor.flatten() : torch::empty(0); }
Tensor joined(const nn::ASMoutput& output) { return output.output.flatten(); }  // its loss is a number
template <typename... Parts>
Tensor joined(const std::tuple<Parts...>& all) {
  return std::apply([](const auto&... parts) { return torch::cat({joined(parts)...}); }, all);
}

// A module of the class behind a factor for each element of its input, so that gradients go through it, and there is
// something to train where it has no parameters.
struct Under final : networks::Network {
  Under(at::IntArrayRef sizes, const std::shared_ptr<nn::Module>& of_class, Apply its) : apply(std::move(its)) {
    if (of_class) register_module("of_class", of_class);
    factor = register_parameter("factor", 0.5 + torch::rand(sizes));
  }
  Tensor forward(const Tensor& input) override { return joined(apply(input * factor)); }
  Apply apply;
  Tensor factor;
};

struct Row {
  std::string name;
  std::function<std::shared_ptr<Under>()> make;
  std::vector<std::int64_t> sizes;  // of the input
  bool draws = false;               // in training
  bool positive = false;            // the input is between 0 and 1
};

// Options, or a function that makes them: those that hold a tensor, which would be the buffer of every rank's module.
template <typename Options>
auto made(const Options& options) {
  if constexpr (std::is_invocable_v<Options>) {
    return options();
  } else {
    return options;
  }
}

// A class whose forward() takes the input alone.
template <typename Holder, typename... Options>
Row row(std::string name, std::vector<std::int64_t> sizes, Options... options) {
  return {std::move(name),
          [=] {
            Holder holder(made(options)...);
            return std::make_shared<Under>(sizes, holder.ptr(),
                                           [holder](const Tensor& x) mutable { return joined(holder->forward(x)); });
          },
          sizes};
}
// One that is called as `call(holder, input)` says.
template <typename Holder, typename Call, typename... Options>
Row row_of(std::string name, std::vector<std::int64_t> sizes, Call call, Options... options) {
  return {std::move(name),
          [=] {
            Holder holder(made(options)...);
            return std::make_shared<Under>(sizes, holder.ptr(),
                                           [=](const Tensor& x) mutable { return joined(call(holder, x)); });
          },
          sizes};
}
Row drawing(Row row) {
  row.draws = true;
  return row;
}
Row between(Row row) {
  row.positive = true;
  return row;
}

// ---- rows ----

void add_layers(std::vector<Row>& rows) {
  const auto add = [&](Row row) { rows.push_back(std::move(row)); };
  add(row<nn::Identity>("Identity", {3, 4}));
  add(row<nn::Linear>("Linear", {3, 4}, 4, 5));
  add(row_of<nn::Bilinear>(
      "Bilinear", {3, 4}, [](auto& m, const Tensor& x) { return m->forward(x, x.cos()); }, 4, 4, 5));
  add(row<nn::Flatten>("Flatten", {3, 4, 2}));
  add(row<nn::Unflatten>("Unflatten", {3, 4}, nn::UnflattenOptions(1, {2, 2})));
  add(row<nn::Conv1d>("Conv1d", {2, 3, 8}, nn::Conv1dOptions(3, 4, 3).padding(1)));
  add(row<nn::Conv2d>("Conv2d", {2, 3, 6, 6}, nn::Conv2dOptions(3, 4, 3).groups(1).stride(2).bias(false)));
  add(row<nn::Conv2d>("Conv2d, by channel", {2, 4, 6, 6}, nn::Conv2dOptions(4, 4, 3).groups(4)));
  add(row<nn::Conv3d>("Conv3d", {2, 2, 4, 4, 4}, nn::Conv3dOptions(2, 3, 2)));
  add(row<nn::ConvTranspose1d>("ConvTranspose1d", {2, 3, 5}, nn::ConvTranspose1dOptions(3, 4, 3)));
  add(row<nn::ConvTranspose2d>("ConvTranspose2d", {2, 3, 4, 4}, nn::ConvTranspose2dOptions(3, 4, 3).stride(2)));
  add(row<nn::ConvTranspose3d>("ConvTranspose3d", {2, 2, 3, 3, 3}, nn::ConvTranspose3dOptions(2, 3, 2)));
  const torch::Tensor places = torch::tensor({0, 3, 3, 1, 5, 2}, torch::kLong);
  add(row_of<nn::Embedding>(
      "Embedding", {6, 4}, [=](auto& m, const Tensor& x) { return m->forward(places) * x; }, 7, 4));
  add(row_of<nn::Embedding>(
      "Embedding, padded", {6, 4}, [=](auto& m, const Tensor& x) { return m->forward(places) * x; },
      nn::EmbeddingOptions(7, 4).padding_idx(3).scale_grad_by_freq(true)));
  add(row_of<nn::EmbeddingBag>(
      "EmbeddingBag", {3, 4},
      [=](auto& m, const Tensor& x) {
        return m->forward(places.view({3, 2})) * x;
      },
      nn::EmbeddingBagOptions(7, 4).mode(torch::kMean)));
  add(row<nn::BatchNorm1d>("BatchNorm1d", {5, 4}, 4));
  add(row<nn::BatchNorm2d>("BatchNorm2d", {3, 4, 3, 3}, nn::BatchNormOptions(4).momentum(0.3)));
  add(row<nn::BatchNorm3d>("BatchNorm3d", {3, 4, 2, 2, 2}, nn::BatchNormOptions(4).affine(false)));
  add(row<nn::InstanceNorm1d>("InstanceNorm1d", {3, 4, 5}, nn::InstanceNormOptions(4).affine(true)));
  add(row<nn::InstanceNorm2d>("InstanceNorm2d", {3, 4, 3, 3},
                              nn::InstanceNormOptions(4).affine(true).track_running_stats(true)));
  add(row<nn::InstanceNorm3d>("InstanceNorm3d", {3, 4, 2, 2, 2}, 4));
  add(row<nn::LayerNorm>("LayerNorm", {3, 4}, nn::LayerNormOptions({4})));
  add(row<nn::GroupNorm>("GroupNorm", {3, 4, 5}, nn::GroupNormOptions(2, 4)));
  add(row<nn::LocalResponseNorm>("LocalResponseNorm", {3, 4, 5}, 2));
  add(row<nn::CrossMapLRN2d>("CrossMapLRN2d", {3, 4, 5, 5}, 3));
  add(drawing(row<nn::Dropout>("Dropout", {3, 8}, 0.3)));
  add(drawing(row<nn::Dropout2d>("Dropout2d", {3, 4, 2, 2}, 0.3)));
  add(drawing(row<nn::Dropout3d>("Dropout3d", {3, 4, 2, 2, 2}, 0.3)));
  add(drawing(row<nn::AlphaDropout>("AlphaDropout", {3, 8}, 0.3)));
  add(drawing(row<nn::FeatureAlphaDropout>("FeatureAlphaDropout", {3, 8, 2}, 0.3)));
  add(row_of<nn::Fold>(
      "Fold", {2, 12, 4}, [](auto& m, const Tensor& x) { return m->forward(x); }, nn::FoldOptions({3, 3}, {2, 2})));
  add(row<nn::Unfold>("Unfold", {2, 3, 4, 4}, nn::UnfoldOptions({2, 2})));
  add(row<nn::PixelShuffle>("PixelShuffle", {2, 8, 2, 2}, 2));
  add(row<nn::PixelUnshuffle>("PixelUnshuffle", {2, 2, 4, 4}, 2));
  add(row<nn::Upsample>(
      "Upsample", {2, 3, 3, 3},
      nn::UpsampleOptions().scale_factor(std::vector<double>{2.0, 2.0}).mode(torch::kBilinear).align_corners(false)));
  const auto two = [](auto& m, const Tensor& x) { return m->forward(x, x.sin()); };
  add(row_of<nn::CosineSimilarity>("CosineSimilarity", {3, 4}, two));
  add(row_of<nn::PairwiseDistance>("PairwiseDistance", {3, 4}, two));
}

void add_pooling(std::vector<Row>& rows) {
  const auto add = [&](Row row) { rows.push_back(std::move(row)); };
  add(row<nn::MaxPool1d>("MaxPool1d", {2, 3, 6}, 2));
  add(row<nn::MaxPool2d>("MaxPool2d", {2, 3, 6, 6}, 2));
  add(row<nn::MaxPool3d>("MaxPool3d", {2, 2, 4, 4, 4}, 2));
  add(row<nn::AvgPool1d>("AvgPool1d", {2, 3, 6}, 2));
  add(row<nn::AvgPool2d>("AvgPool2d", {2, 3, 6, 6}, 2));
  add(row<nn::AvgPool3d>("AvgPool3d", {2, 2, 4, 4, 4}, 2));
  add(row<nn::AdaptiveMaxPool1d>("AdaptiveMaxPool1d", {2, 3, 7}, 3));
  add(row<nn::AdaptiveMaxPool2d>("AdaptiveMaxPool2d", {2, 3, 7, 5}, nn::AdaptiveMaxPool2dOptions({3, 2})));
  add(row<nn::AdaptiveMaxPool3d>("AdaptiveMaxPool3d", {2, 2, 4, 4, 5}, nn::AdaptiveMaxPool3dOptions({2, 2, 3})));
  add(row<nn::AdaptiveAvgPool1d>("AdaptiveAvgPool1d", {2, 3, 7}, 3));
  add(row<nn::AdaptiveAvgPool2d>("AdaptiveAvgPool2d", {2, 3, 7, 5}, nn::AdaptiveAvgPool2dOptions({3, 2})));
  add(row<nn::AdaptiveAvgPool3d>("AdaptiveAvgPool3d", {2, 2, 4, 4, 5}, nn::AdaptiveAvgPool3dOptions({2, 2, 3})));
  add(row<nn::FractionalMaxPool2d>("FractionalMaxPool2d", {2, 3, 7, 7}, [] {
    return nn::FractionalMaxPool2dOptions(2).output_size(3)._random_samples(torch::full({2, 3, 2}, 0.4f));
  }));
  add(row<nn::FractionalMaxPool3d>("FractionalMaxPool3d", {2, 2, 5, 5, 5}, [] {
    return nn::FractionalMaxPool3dOptions(2).output_size(2)._random_samples(torch::full({2, 2, 3}, 0.4f));
  }));
  add(between(row<nn::LPPool1d>("LPPool1d", {2, 3, 6}, nn::LPPool1dOptions(2.0, 2))));
  add(between(row<nn::LPPool2d>("LPPool2d", {2, 3, 6, 6}, nn::LPPool2dOptions(2.0, 2))));
  const auto unpooled = [](auto pool) {
    return [pool](auto& m, const Tensor& x) {
      auto [values, indices] = pool(x);
      return m->forward(values, indices);
    };
  };
  add(row_of<nn::MaxUnpool1d>("MaxUnpool1d", {2, 3, 6},
                              unpooled([](const Tensor& x) { return torch::max_pool1d_with_indices(x, 2); }), 2));
  add(row_of<nn::MaxUnpool2d>("MaxUnpool2d", {2, 3, 6, 6},
                              unpooled([](const Tensor& x) { return torch::max_pool2d_with_indices(x, 2); }), 2));
  add(row_of<nn::MaxUnpool3d>("MaxUnpool3d", {2, 2, 4, 4, 4},
                              unpooled([](const Tensor& x) { return torch::max_pool3d_with_indices(x, 2); }), 2));
  add(row<nn::ReflectionPad1d>("ReflectionPad1d", {2, 3, 6}, 2));
  add(row<nn::ReflectionPad2d>("ReflectionPad2d", {2, 3, 6, 6}, 2));
  add(row<nn::ReflectionPad3d>("ReflectionPad3d", {2, 3, 4, 4, 4}, 2));
  add(row<nn::ReplicationPad1d>("ReplicationPad1d", {2, 3, 6}, 2));
  add(row<nn::ReplicationPad2d>("ReplicationPad2d", {2, 3, 6, 6}, 2));
  add(row<nn::ReplicationPad3d>("ReplicationPad3d", {2, 3, 4, 4, 4}, 2));
  add(row<nn::ZeroPad2d>("ZeroPad2d", {2, 3, 6, 6}, 2));
  add(row<nn::ConstantPad1d>("ConstantPad1d", {2, 3, 6}, nn::ConstantPad1dOptions(2, 0.5)));
  add(row<nn::ConstantPad2d>("ConstantPad2d", {2, 3, 6, 6}, nn::ConstantPad2dOptions(2, 0.5)));
  add(row<nn::ConstantPad3d>("ConstantPad3d", {2, 3, 4, 4, 4}, nn::ConstantPad3dOptions(2, 0.5)));
}

void add_activations(std::vector<Row>& rows) {
  const auto add = [&](Row row) { rows.push_back(std::move(row)); };
  const std::vector<std::int64_t> sizes = {4, 6};
  add(row<nn::ELU>("ELU", sizes));
  add(row<nn::SELU>("SELU", sizes));
  add(row<nn::CELU>("CELU", sizes));
  add(row<nn::GELU>("GELU", sizes));
  add(row<nn::GLU>("GLU", sizes));
  add(row<nn::Hardshrink>("Hardshrink", sizes));
  add(row<nn::Hardtanh>("Hardtanh", sizes));
  add(row<nn::LeakyReLU>("LeakyReLU", sizes));
  add(row<nn::LogSigmoid>("LogSigmoid", sizes));
  add(row<nn::LogSoftmax>("LogSoftmax", sizes, 1));
  add(row<nn::Mish>("Mish", sizes));
  add(row<nn::PReLU>("PReLU", sizes, nn::PReLUOptions().num_parameters(6)));
  add(drawing(row<nn::RReLU>("RReLU", sizes)));
  add(row<nn::ReLU>("ReLU", sizes, nn::ReLUOptions().inplace(true)));
  add(row<nn::ReLU6>("ReLU6", sizes));
  add(row<nn::SiLU>("SiLU", sizes));
  add(row<nn::Sigmoid>("Sigmoid", sizes));
  add(row<nn::Softmax>("Softmax", sizes, 1));
  add(row<nn::Softmax2d>("Softmax2d", {2, 3, 2, 2}));
  add(row<nn::Softmin>("Softmin", sizes, 1));
  add(row<nn::Softplus>("Softplus", sizes));
  add(row<nn::Softshrink>("Softshrink", sizes));
  add(row<nn::Softsign>("Softsign", sizes));
  add(row<nn::Tanh>("Tanh", sizes));
  add(row<nn::Tanhshrink>("Tanhshrink", sizes));
  add(row<nn::Threshold>("Threshold", sizes, 0.1, 0.5));
}

void add_losses(std::vector<Row>& rows) {
  const auto add = [&](Row row) { rows.push_back(std::move(row)); };
  const std::vector<std::int64_t> sizes = {4, 3};
  const Tensor class_of = torch::tensor({0, 2, 1, 2}, torch::kLong);
  const Tensor sign = torch::tensor({1.0f, -1.0f, -1.0f, 1.0f});
  const Tensor bits =
      torch::tensor({1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 1.0f, 1.0f, 1.0f, 0.0f, 0.0f, 1.0f, 0.0f}).view({4, 3});
  const auto target = [](const Tensor& of) { return [of](auto& m, const Tensor& x) { return m->forward(x, of); }; };
  add(row_of<nn::L1Loss>("L1Loss", sizes, target(bits)));
  add(row_of<nn::MSELoss>("MSELoss", sizes, target(bits)));
  add(row_of<nn::SmoothL1Loss>("SmoothL1Loss", sizes, target(bits)));
  add(row_of<nn::HuberLoss>("HuberLoss", sizes, target(bits)));
  add(row_of<nn::KLDivLoss>(
      "KLDivLoss", sizes, [=](auto& m, const Tensor& x) { return m->forward(x.log_softmax(1), bits.softmax(1)); },
      nn::KLDivLossOptions().reduction(torch::kBatchMean)));
  add(row_of<nn::BCELoss>("BCELoss", sizes, [=](auto& m, const Tensor& x) { return m->forward(x.sigmoid(), bits); }));
  add(row_of<nn::BCEWithLogitsLoss>("BCEWithLogitsLoss", sizes, target(bits)));
  add(row_of<nn::HingeEmbeddingLoss>("HingeEmbeddingLoss", sizes, target(2 * bits - 1)));
  add(row_of<nn::MultiMarginLoss>("MultiMarginLoss", sizes, target(class_of)));
  add(row_of<nn::MultiLabelMarginLoss>(
      "MultiLabelMarginLoss", sizes,
      target(torch::tensor({0, -1, 1, 2, 1, -1, 0, 1, 1, -1, 2, 0}, torch::kLong).view({4, 3}))));
  add(row_of<nn::SoftMarginLoss>("SoftMarginLoss", sizes, target(2 * bits - 1)));
  add(row_of<nn::MultiLabelSoftMarginLoss>("MultiLabelSoftMarginLoss", sizes, target(bits)));
  add(row_of<nn::CosineEmbeddingLoss>("CosineEmbeddingLoss", sizes,
                                      [=](auto& m, const Tensor& x) { return m->forward(x, x.cos(), sign); }));
  add(row_of<nn::MarginRankingLoss>("MarginRankingLoss", {4},
                                    [=](auto& m, const Tensor& x) { return m->forward(x, x.cos(), sign); }));
  const auto triplet = [](auto& m, const Tensor& x) { return m->forward(x, x.cos(), x.sin()); };
  add(row_of<nn::TripletMarginLoss>("TripletMarginLoss", sizes, triplet));
  add(row_of<nn::TripletMarginWithDistanceLoss>("TripletMarginWithDistanceLoss", sizes, triplet));
  add(row_of<nn::PoissonNLLLoss>("PoissonNLLLoss", sizes, target(bits)));
  add(row_of<nn::NLLLoss>("NLLLoss", sizes,
                          [=](auto& m, const Tensor& x) { return m->forward(x.log_softmax(1), class_of); }));
  add(row_of<nn::CrossEntropyLoss>("CrossEntropyLoss", sizes, target(class_of), [] {
    return nn::CrossEntropyLossOptions().label_smoothing(0.1).weight(torch::tensor({0.5f, 1.0f, 2.0f}));
  }));
  add(row_of<nn::CTCLoss>("CTCLoss", {6, 2, 4}, [](auto& m, const Tensor& x) {
    const auto lengths = [](std::int64_t n) { return torch::full({2}, n, torch::kLong); };
    return m->forward(x.log_softmax(2), torch::tensor({1, 2, 3, 1}, torch::kLong).view({2, 2}), lengths(6), lengths(2));
  }));
  add(row_of<nn::AdaptiveLogSoftmaxWithLoss>(
      "AdaptiveLogSoftmaxWithLoss", {4, 8},
      [](auto& m, const Tensor& x) {
        return m->forward(x, torch::tensor({0, 9, 4, 2}, torch::kLong));
      },
      nn::AdaptiveLogSoftmaxWithLossOptions(8, 10, {3, 6}).div_value(2.0)));
}

void add_sequences(std::vector<Row>& rows) {
  const auto add = [&](Row row) { rows.push_back(std::move(row)); };
  add(row<nn::RNN>("RNN", {5, 3, 4}, nn::RNNOptions(4, 6).num_layers(2).nonlinearity(torch::kReLU)));
  add(row<nn::LSTM>("LSTM", {5, 3, 4}, nn::LSTMOptions(4, 6).bidirectional(true)));
  add(row<nn::LSTM>("LSTM, projected", {3, 5, 4}, nn::LSTMOptions(4, 6).proj_size(2).batch_first(true)));
  add(row<nn::GRU>("GRU", {5, 3, 4}, nn::GRUOptions(4, 6).num_layers(2)));
  add(drawing(row<nn::GRU>("GRU, with dropout", {5, 3, 4}, nn::GRUOptions(4, 6).num_layers(2).dropout(0.3))));
  add(row_of<nn::LSTM>(
      "LSTM, packed", {5, 3, 4},
      [](auto& m, const Tensor& x) {
        const auto packed = nn::utils::rnn::pack_padded_sequence(x, torch::tensor({5, 3, 2}, torch::kLong));
        return std::get<0>(m->forward_with_packed_input(packed)).data();
      },
      nn::LSTMOptions(4, 6)));
  add(row<nn::RNNCell>("RNNCell", {3, 4}, 4, 6));
  add(row<nn::LSTMCell>("LSTMCell", {3, 4}, 4, 6));
  add(row<nn::GRUCell>("GRUCell", {3, 4}, 4, 6));
  const auto itself = [](auto& m, const Tensor& x) { return m->forward(x, x, x); };
  add(row_of<nn::MultiheadAttention>("MultiheadAttention", {5, 3, 4}, itself, nn::MultiheadAttentionOptions(4, 2)));
  add(row_of<nn::MultiheadAttention>(
      "MultiheadAttention, other keys", {5, 3, 4},
      [](auto& m, const Tensor& x) { return m->forward(x, x.slice(2, 0, 3), x.slice(2, 1, 4)); },
      nn::MultiheadAttentionOptions(4, 2).kdim(3).vdim(3).add_zero_attn(true)));
  const auto encoder = nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(6).dropout(0.0);
  const auto decoder = nn::TransformerDecoderLayerOptions(4, 2).dim_feedforward(6).dropout(0.0);
  const auto with_memory = [](auto& m, const Tensor& x) { return m->forward(x, x.cos()); };
  add(row<nn::TransformerEncoderLayer>("TransformerEncoderLayer", {5, 3, 4}, encoder));
  add(row<nn::TransformerEncoder>("TransformerEncoder", {5, 3, 4}, nn::TransformerEncoderOptions(encoder, 2)));
  add(row_of<nn::TransformerDecoderLayer>("TransformerDecoderLayer", {5, 3, 4}, with_memory, decoder));
  add(row_of<nn::TransformerDecoder>("TransformerDecoder", {5, 3, 4}, with_memory,
                                     nn::TransformerDecoderOptions(decoder, 2)));
  add(row_of<nn::Transformer>("Transformer", {5, 3, 4}, with_memory,
                              nn::TransformerOptions(4, 2, 1, 1).dim_feedforward(6).dropout(0.0)));
  add(drawing(row<nn::TransformerEncoderLayer>("TransformerEncoderLayer, with dropout", {5, 3, 4},
                                               nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(6))));
}

void add_containers(std::vector<Row>& rows) {
  const auto add = [&](std::string name, std::vector<std::int64_t> sizes,
                       const std::function<std::pair<std::shared_ptr<nn::Module>, Apply>()>& make) {
    rows.push_back({std::move(name),
                    [=] {
                      auto [module, apply] = make();
                      return std::make_shared<Under>(sizes, module, apply);
                    },
                    sizes});
  };
  using Made = std::pair<std::shared_ptr<nn::Module>, Apply>;
  add("Sequential", {3, 4}, [] {
    nn::Sequential all(nn::Linear(4, 5), nn::Tanh(), nn::Functional(torch::relu), nn::Linear(5, 2));
    return Made{all.ptr(), [all](const Tensor& x) mutable { return all->forward(x); }};
  });
  add("ModuleList", {3, 4}, [] {
    nn::ModuleList all(nn::Linear(4, 4), nn::Linear(4, 4));
    return Made{all.ptr(), [all](const Tensor& x) {
                  Tensor y = x;
                  for (const auto& each : *all) y = each->as<nn::Linear>()->forward(y).tanh();
                  return y;
                }};
  });
  add("ModuleDict", {3, 4}, [] {
    nn::ModuleDict all(std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>>{{"a", nn::Linear(4, 5).ptr()},
                                                                                        {"b", nn::Linear(4, 5).ptr()}});
    return Made{all.ptr(), [all](const Tensor& x) mutable {
                  return all["a"]->as<nn::Linear>()->forward(x) * all["b"]->as<nn::Linear>()->forward(x);
                }};
  });
  add("ParameterList", {3, 4}, [] {
    nn::ParameterList all(torch::rand({4}, torch::requires_grad()), torch::rand({3, 4}, torch::requires_grad()));
    return Made{all.ptr(), [all](const Tensor& x) mutable { return all[0] * x + all[1]; }};
  });
  add("ParameterDict", {3, 4}, [] {
    nn::ParameterDict all;
    all->insert("a", torch::rand({4}, torch::requires_grad()));
    all->insert("b", torch::rand({3, 4}, torch::requires_grad()));
    return Made{all.ptr(), [all](const Tensor& x) mutable { return all["a"] * x + all["b"]; }};
  });
}

std::vector<Row> all_rows() {
  torch::manual_seed(1);
  std::vector<Row> rows;
  add_layers(rows);
  add_pooling(rows);
  add_activations(rows);
  add_losses(rows);
  add_sequences(rows);
  add_containers(rows);
  return rows;
}

// ---- runs ----

constexpr int steps = 3;

Tensor input_of(const Row& row, int step) {
  auto numbers = at::detail::createCPUGenerator(static_cast<std::uint64_t>(50 + step));
  const Tensor normal = torch::randn(row.sizes, numbers);
  return row.positive ? normal.sigmoid() : normal;
}
Tensor loss_of(const Tensor& output) {
  const Tensor weights = torch::arange(output.numel(), output.options()).cos();
  return (output * weights).sum();
}

// Outputs of each step, and then of an evaluation, which sees the buffers; gradients of the first step.
struct Values {
  std::vector<std::vector<float>> outputs;
  std::map<std::string, std::vector<float>> gradients;
};

std::shared_ptr<Under> original(const Row& row) {
  torch::manual_seed(7);
  return row.make();
}

Values plain(const Row& row, bool draws) {
  const auto net = original(row);
  if (row.draws && !draws) net->eval();
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  Values values;
  for (int step = 0; step < steps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step));
    const Tensor output = net->forward(input_of(row, step));
    values.outputs.push_back(networks::floats(output));
    optimizer.zero_grad();
    loss_of(output).backward();
    if (step == 0) {
      for (const auto& each : net->named_parameters()) {
        const Tensor gradient = each.value().grad();
        values.gradients[each.key()] =
            networks::floats(gradient.defined() ? gradient : torch::zeros_like(each.value()));
      }
    }
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  net->eval();
  values.outputs.push_back(networks::floats(net->forward(input_of(row, steps))));
  return values;
}

Values sharded(const Row& row, int ranks, tessera::Strategy strategy, bool draws) {
  const auto begin = original(row);
  Values values;
  tessera::launch({.ranks = ranks, .threads = 1}, [&](tessera::World& world) {
    const auto net = row.make();
    networks::copy_values(*begin, *net);
    if (row.draws && !draws) net->eval();
    tessera::torch::FullyShard model(world, net, {.may_be_unused = {"*"}}, {.strategy = strategy});
    model.finalize(tessera::Sgd{.learning_rate = 0.01f});
    Values own;
    for (int step = 0; step < steps; ++step) {
      if (draws) torch::manual_seed(static_cast<std::uint64_t>(step));
      const Tensor output = model.forward(input_of(row, step));
      own.outputs.push_back(networks::floats(output));
      model.backward(loss_of(output));
      model.update();
      if (step != 0) continue;
      for (const auto& each : net->named_parameters())
        own.gradients[each.key()] = model.sharded().whole(model.parameter(each.key()), "gradient");
    }
    const torch::NoGradGuard no_grad;
    net->eval();
    own.outputs.push_back(networks::floats(model.forward(input_of(row, steps))));
    if (world.rank() == 0) values = own;
  });
  return values;
}

bool are_near(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::abs(x - y) <= 1e-5f * std::max(1.0f, std::abs(y)); });
}
bool are_near(const Values& a, const Values& b) {
  for (std::size_t i = 0; i < b.outputs.size(); ++i) {
    if (!are_near(a.outputs[i], b.outputs[i])) return false;
  }
  return std::all_of(b.gradients.begin(), b.gradients.end(),
                     [&](const auto& each) { return are_near(a.gradients.at(each.first), each.second); });
}

void check(const Row& row) {
  const Values expected = plain(row, true);
  CHECK(std::all_of(expected.outputs[0].begin(), expected.outputs[0].end(), [](float x) { return std::isfinite(x); }));
  const Values alone = sharded(row, 1, tessera::Strategy::fsdp, true);
  CHECK((alone.outputs[0] == expected.outputs[0]));
  CHECK((alone.gradients == expected.gradients));
  CHECK(are_near(alone, expected));
  const Values without_draws = row.draws ? plain(row, false) : expected;
  CHECK(are_near(sharded(row, 2, tessera::Strategy::fsdp, false), without_draws));
  CHECK(are_near(sharded(row, 3, tessera::Strategy::ddp, false), without_draws));
}

TEST_CASE("every_class_of_torchs_trains_sharded_as_it_does_plainly") {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // on which sums of torch's depend
  for (const Row& row : all_rows()) {
    CAPTURE(row.name);
    CHECK_NOTHROW(check(row));
  }
  at::set_num_threads(threads);
}

}  // namespace classes_test
