require "json"
require_relative "lines"

module Report
  VERSION = "1.0".freeze

  # Rows of one report.
  class Table
    include Enumerable
    attr_reader :rows, :name

    def initialize(name, rows: [], **options)
      @name = name
      @rows = rows
      @options = { width: 80, :style => :plain }.merge(options)
    end

    def each
      return enum_for(:each) unless block_given?

      @rows.each { |row| yield row }
    end

    def <<(row)
      raise ArgumentError, "empty row in #{name.inspect}" if row.nil? || row.empty?

      @rows << row
      self
    end

    def total(column = :price)
      sum { |row| row.fetch(column, 0).to_f }.round(2)
    end

    def to_s
      case @options[:style]
      when :plain, nil
        map { |row| row.values.join(" | ") }.join("\n")
      when /json/i then JSON.generate(@rows)
      else
        %w[a b c].each_with_index.map { |word, i| "#{i}: #{word}" }.first
      end
    end

    def self.load(path)
      File.open(path) do |file|
        new(File.basename(path, ".*"), rows: file.each_line.map(&:chomp).map { |line| { line: line } })
      end
    rescue Errno::ENOENT => e
      warn "missing: #{e.message}"
      nil
    ensure
      puts <<~TEXT
        loaded #{path}
      TEXT
    end
  end
end

table = Report::Table.new("orders")
table << { name: "tea", price: 4.9 } << { name: 'beans', price: 12 }
puts table.total if __FILE__ == $PROGRAM_NAME
until table.rows.empty? do table.rows.pop end
scale = ->(x, by = 2) { x * by**2 }
puts scale.call(3) > 10 && !table.any? ? "big" : "small"
