// Rows as Markdown, CSV, JSON and charts: four forms of the same figures.
#pragma once

#include <span>
#include <string>

#include "json/json.hpp"
#include "memory_per_gpu/request.hpp"
#include "memory_per_gpu/rows.hpp"

namespace bench {

// Says what was run, where and when: lines for people.
std::string heading(const Request& request, std::span<char* const> command);

std::string table_heading();
std::string table_line(const Row& row);

std::string to_csv(std::span<const Row> rows);
tools::Json to_json(const Request& request, std::span<char* const> command, std::span<const Row> rows);

// Draws for the last precision every strategy at the largest number of ranks that really run, and at the largest of
// all.
tools::Json bars_chart(const Request& request, std::span<const Row> rows);
// Draws bytes over ranks for the last precision.
tools::Json lines_chart(const Request& request, std::span<const Row> rows);

}  // namespace bench
