#include "train/report/rank_rows.h"

#include <array>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace stepc::train {

namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 8> kTitles = {"rank", "step",    "collectives", "batches",
                                                "sent", "planned", "measured",    "process"};

std::array<std::string, 8> cells(size_t rank, const RankRow& row) {
  const auto part = [&](double seconds) {
    return row.step_seconds > 0 ? str("{:.1f} ms ({:.1f} %)", 1e3 * seconds, 100 * seconds / row.step_seconds)
                                : str("{:.1f} ms", 1e3 * seconds);
  };
  return {str("{}", rank),
          row.step_seconds > 0 ? str("{:.1f} ms", 1e3 * row.step_seconds) : std::string("-"),
          part(row.comm_seconds),
          part(row.batch_seconds),
          human_bytes(row.sent_bytes),
          human_bytes(row.planned_bytes),
          human_bytes(row.measured_bytes),
          human_bytes(row.process_bytes)};
}

}  // namespace

std::vector<RankRow> gather_rows(Ranks& ranks, const RankRow& mine) {
  const Json own = {mine.step_seconds,  mine.comm_seconds,   mine.batch_seconds, mine.sent_bytes,
                    mine.planned_bytes, mine.measured_bytes, mine.process_bytes};
  std::vector<RankRow> rows;
  for (const std::string& text : ranks.exchange(own.dump())) {
    const Json row = Json::parse(text);
    rows.push_back({row.at(0), row.at(1), row.at(2), row.at(3), row.at(4), row.at(5), row.at(6)});
  }
  return rows;
}

std::string to_text(const std::vector<RankRow>& rows) {
  if (rows.empty()) return {};
  const auto line = [](const auto& of) {
    return str("  {:<6} {:>10} {:>18} {:>18} {:>12} {:>12} {:>12} {:>12}\n", of[0], of[1], of[2], of[3], of[4], of[5],
               of[6], of[7]);
  };
  std::string text = line(kTitles);
  for (size_t r = 0; r < rows.size(); ++r) text += line(cells(r, rows[r]));
  return text;
}

std::string to_html(const std::vector<RankRow>& rows) {
  if (rows.empty()) return {};
  const auto line = [](const auto& of, const char* tag) {
    std::string cells;
    for (const auto& cell : of) cells += str("<{}>{}</{}>", tag, cell, tag);
    return str("<tr>{}</tr>\n", cells);
  };
  std::string table = line(kTitles, "th");
  for (size_t r = 0; r < rows.size(); ++r) table += line(cells(r, rows[r]), "td");
  return str(
      "<h2>Ranks</h2>\n<table>{}</table>\n<p>Of a step: the median, what of it a rank was in collectives (sending, and "
      "waiting for others), what came before it for its batch, and the bytes that it sent. Memory of a step at its "
      "peak, "
      "communication included, and of the whole process.</p>\n",
      table);
}

}  // namespace stepc::train
