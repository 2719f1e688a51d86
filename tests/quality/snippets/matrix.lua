local Matrix = {}
Matrix.__index = Matrix

--[[ Rows are tables
     of numbers. ]]
function Matrix.new(rows, options)
  local self = setmetatable({}, Matrix)
  self.rows = rows or {}
  self.options = options or { width = 3, ["name"] = "m", [1] = true, nested = { 1, 2; 3 } }
  return self
end

function Matrix:size()
  return #self.rows, self.rows[1] and #self.rows[1] or 0
end

local function dot(a, b)
  local sum = 0
  for i, value in ipairs(a) do
    sum = sum + value * (b[i] or 0)
  end
  return sum
end

function Matrix.__mul(left, right)
  if type(right) == "number" then
    local made = {}
    for i = 1, #left.rows do
      made[i] = {}
      for j, value in ipairs(left.rows[i]) do made[i][j] = value * right end
    end
    return Matrix.new(made)
  elseif not right then
    error("nothing to multiply with: " .. tostring(right), 2)
  else
    return dot(left.rows[1], right.rows[1])
  end
end

local m = Matrix.new({ { 1, 2 }, { 3, 4 } })
local n = m * 2
while n:size() > 2 do n = m end
repeat
  local rows, columns = n:size()
  print(("%d x %d"):format(rows, columns), 2 ^ 10 // 3, 0xFF ~= 255, 'it\'s')
until rows >= 2
local text = [[long
text]]
local ok, message = pcall(function(...) return select("#", ...) + text:len() end, 1, 2)
if ok and message ~= nil or false then goto done end
::done::
return Matrix
