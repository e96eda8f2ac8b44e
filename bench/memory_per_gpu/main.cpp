// memory_per_gpu: what one rank of a training job holds, planned, really taken, and by formula.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <string>

#include "command_line/streams.hpp"
#include "common/command_line.hpp"
#include "json/json.hpp"
#include "memory_per_gpu/report.hpp"
#include "memory_per_gpu/request.hpp"
#include "memory_per_gpu/rows.hpp"
#include "plot/plot.hpp"
#include "tessera/base/error.hpp"

namespace {

using namespace bench;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw tessera::DataError(fmt::format("{}: cannot be written", path.string()));
}

std::string beside(const std::filesystem::path& figure) {
  return (figure.parent_path() / (figure.stem().string() + "-over-ranks" + figure.extension().string())).string();
}

void write_files(const Request& request, std::span<char* const> command, std::span<const Row> rows) {
  if (request.csv) write(*request.csv, to_csv(rows));
  if (request.json) write(*request.json, to_json(request, command, rows).dump(std::size_t{1}) + "\n");
  if (!request.plot) return;
  tools::plot(bars_chart(request, rows), request.plot->string());
  tools::plot(lines_chart(request, rows), beside(*request.plot));
}

bool differs(const Row& row) { return row.memory.measurable && !row.measured_as_planned(); }

int run(int argc, char** argv) {
  const std::optional<Request> request = parse_request(argc, argv);
  if (!request) return 0;
  const std::span<char* const> command(argv, static_cast<std::size_t>(argc));
  fmt::print("{}{}", heading(*request, command), table_heading());
  const std::vector<Row> rows = compare(request->comparison, [](const Row& row) {
    fmt::print("{}", table_line(row));
    std::fflush(stdout);
  });
  write_files(*request, command, rows);
  const auto different = std::count_if(rows.begin(), rows.end(), differs);
  const auto measured = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.memory.measurable; });
  fmt::print("\n{} rows, {} measured; measured bytes are not the planned ones in {}\n", rows.size(), measured,
             different);
  return different == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  tools::open_closed_streams();
  try {
    return tools::exit_code(run(argc, argv));
  } catch (const examples::OptionError& error) {
    tools::tell(std::string("error: ") + error.what());
    return examples::exit_bad_options;
  } catch (const std::exception& error) {
    tools::tell(std::string("error: ") + error.what());
    return 1;
  }
}
