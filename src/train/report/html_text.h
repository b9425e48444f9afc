// Text made fit for an HTML page.
#pragma once

#include <string>
#include <string_view>

namespace stepc::train {

inline std::string html_text(std::string_view text) {
  std::string safe;
  for (const char character : text) {
    switch (character) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += character;
    }
  }
  return safe;
}

}  // namespace stepc::train
